// The demo: reads frames of both sides from /events and draws them. No library, no file from another host.
'use strict';

const $ = id => document.getElementById(id);
const state = { hello: null, frame: null, lap: 0, points: [], dragging: false, colours: {} };
const still = matchMedia('(prefers-reduced-motion: reduce)');

// --- Small helpers -------------------------------------------------------------------------------------------------

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) key in made ? made[key] = value : made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function shape(name, attributes, ...children) {
  const made = document.createElementNS('http://www.w3.org/2000/svg', name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

const seconds = s => s == null ? '–' : s >= 100 ? s.toFixed(0) + ' s' : s >= 1 ? s.toFixed(1) + ' s' : (1000 * s).toFixed(0) + ' ms';
const percent = p => p == null ? '–' : Math.round(100 * p) + ' %';
const words = { fast: 'fast', recorded: 'as recorded', 'true lengths': 'true lengths', none: 'none' };

async function send(wanted) {
  try {
    const answer = await fetch('control', { method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify(wanted) });
    if (!answer.ok) $('status').textContent = (await answer.json()).error;
  } catch { $('status').textContent = 'the demo has ended'; }
}

// --- Lanes: every request is a bar that moves to where the last frame says ---------------------------------------------

class Board {
  constructor(section) {
    this.section = section;
    this.canvas = section.querySelector('canvas');
    this.context = this.canvas.getContext('2d');
    this.bars = new Map();
  }

  resize() {
    const scale = devicePixelRatio || 1;
    this.width = this.canvas.clientWidth;
    this.height = this.canvas.clientHeight;
    this.canvas.width = Math.round(this.width * scale);
    this.canvas.height = Math.round(this.height * scale);
    this.context.setTransform(scale, 0, 0, scale, 0, 0);
    if (state.frame) this.aim(state.frame.sides[this.index]);
  }

  // Where each request belongs; those that are not in the frame any more leave to the right.
  aim(side) {
    const slots = state.hello.slots, pad = 6, half = this.width / 2;
    this.pitch = (this.height - 2 * pad) / Math.max(slots, 16);
    this.thick = Math.max(2, Math.min(14, this.pitch * 0.72));
    const fit = Math.max(slots, 16), widest = state.hello.widest, room = half - 22;
    const wide = tokens => Math.max(4, room * Math.min(1, tokens / widest));
    const seen = new Set();
    const put = (number, tokens, third, x, row, more) => {
      seen.add(number);
      const target = { x, y: pad + row * this.pitch + (this.pitch - this.thick) / 2, w: wide(tokens), third, alpha: 1, done: 0, late: false, ...more };
      const bar = this.bars.get(number);
      if (bar) Object.assign(bar.target, target);
      else this.bars.set(number, { ...target, x: x - 26, alpha: 0, target });
    };
    side.queue.slice(0, fit).forEach(([number, tokens, third, waited], place) => put(number, tokens, third, 12, place, { late: waited > state.hello.within_s }));
    side.slots.forEach(([number, tokens, third, slot, done]) => put(number, tokens, third, half + 8, slot, { done, running: true }));
    for (const [number, bar] of this.bars) {
      if (seen.has(number) || bar.target.leaving) continue;
      if (bar.target.running) Object.assign(bar.target, { leaving: true, x: this.width + 12, alpha: 0, done: 1 });
      else this.bars.delete(number); // behind those that fit
    }
    this.hidden = Math.max(0, side.waiting - Math.min(side.queue.length, fit));
    const short = side.queue.filter(each => each[2] === 0).length;
    this.canvas.setAttribute('aria-label', `${side.waiting} requests wait, ${short} of them of the shortest third; ${side.slots.length} of ${slots} slots run`);
  }

  draw(step) {
    const { context: c, width, height } = this, colour = state.colours;
    const ease = still.matches ? 1 : 1 - Math.exp(-step / 110), fade = still.matches ? 1 : 1 - Math.exp(-step / 160);
    c.clearRect(0, 0, width, height);
    c.fillStyle = colour.line;
    c.fillRect(width / 2 - 3, 6, 1, height - 12);
    for (const [number, bar] of this.bars) {
      const to = bar.target;
      for (const name of ['x', 'y', 'w', 'done']) bar[name] += (to[name] - bar[name]) * ease;
      bar.alpha += (to.alpha - bar.alpha) * fade;
      if (to.leaving && bar.alpha < 0.03) { this.bars.delete(number); continue; }
      const fill = [colour.short, colour.mid, colour.long][to.third];
      if (to.running) {
        c.globalAlpha = bar.alpha * (to.third ? 0.3 : 0.32);
        this.box(bar.x, bar.y, bar.w, fill);
        c.globalAlpha = bar.alpha;
        this.box(bar.x, bar.y, Math.max(2, bar.w * bar.done), fill);
      } else {
        c.globalAlpha = bar.alpha;
        this.box(bar.x, bar.y, bar.w, fill);
        if (to.late) { c.fillStyle = colour.late; c.fillRect(bar.x - 7, bar.y, 3, this.thick); }
      }
    }
    c.globalAlpha = 1;
    if (this.hidden) {
      c.font = '600 12px system-ui, sans-serif';
      const text = `+ ${this.hidden} more`, w = c.measureText(text).width + 14;
      c.fillStyle = colour.panel;
      c.beginPath(); c.roundRect(width / 2 - w - 12, height - 28, w, 20, 10); c.fill();
      c.fillStyle = colour.text;
      c.fillText(text, width / 2 - w - 5, height - 14);
    }
  }

  box(x, y, w, fill) {
    this.context.fillStyle = fill;
    this.context.beginPath();
    this.context.roundRect(x, y, w, this.thick, Math.min(3, this.thick / 2));
    this.context.fill();
  }
}

const boards = [0, 1].map(index => Object.assign(new Board($(`side-${index}`)), { index }));

let before = 0;
function animate(now) {
  if (state.frame) for (const board of boards) board.draw(Math.min(100, now - before));
  before = now;
  requestAnimationFrame(animate);
}

function readColours() {
  const probe = element('i');
  document.body.append(probe);
  for (const name of ['short', 'mid', 'long', 'late', 'line', 'panel', 'text']) {
    probe.style.color = `var(--${name})`;
    state.colours[name] = getComputedStyle(probe).color;
  }
  probe.remove();
}

// --- Numbers, curves, verdict ------------------------------------------------------------------------------------------

function drawNumbers(frame) {
  frame.sides.forEach((side, index) => {
    const find = name => $(`side-${index}`).querySelector(name);
    find('.within').textContent = percent(side.within);
    find('.short').textContent = percent(side.short);
    $(`side-${index}`).querySelectorAll('.gauge i').forEach((bar, place) => { bar.style.width = 100 * ((place ? side.short : side.within) ?? 0) + '%'; });
    find('.ttft').textContent = seconds(side.ttft[0]);
    find('.p99').textContent = seconds(side.ttft[1]);
    find('.token').textContent = seconds(side.per_token);
    find('.waiting').textContent = side.waiting;
  });
  const right = { fast: 'orders by predicted lengths', recorded: 'orders by the predictions of the log', 'true lengths': 'orders by the true lengths: an upper bound', none: 'knows no lengths' };
  $('policy-name').textContent = frame.policy;
  $('policy-words').textContent = right[frame.predictor] ?? '';
  if (!state.dragging) $('load').value = frame.load;
  $('load-text').textContent = `${Math.round(100 * $('load').value)} % of the capacity, ${(frame.rate * $('load').value / frame.load).toFixed(1)} requests/s`;
  const chosen = document.querySelector(`#predictors [value="${CSS.escape(frame.predictor)}"]`);
  if (chosen) chosen.checked = true;
  if (document.activeElement !== $('policy')) choosePolicy(frame.policy);
  const left = Math.max(0, state.hello.seconds - frame.now), open = frame.sides.map(side => side.sent - side.answered - side.failed);
  $('status').className = frame.state === 'ended' ? '' : 'live';
  $('status').textContent = frame.state === 'running' ? `live, ${Math.ceil(left)} s to go`
    : frame.state === 'draining' ? `all sent, ${Math.max(...open)} left to answer` : 'finished';
  $('finish').disabled = frame.state !== 'running';
  $('restart').textContent = frame.state === 'ended' ? 'Run again' : 'Start over';
  $('restart').className = frame.state === 'ended' ? 'primary' : '';
  const since = frame.since > 0 ? ` Figures: of requests sent since the last change, at ${frame.since.toFixed(0)} s.` : '';
  const late = frame.late > 0.5 ? ` This machine was up to ${frame.late.toFixed(1)} s behind: times are too long on both sides.` : '';
  const failed = frame.sides[0].failed + frame.sides[1].failed;
  $('foot').textContent = `The same ${frame.sides[0].sent} requests at the same times to both: ${state.hello.origin}, on ${state.hello.fleet} with ${state.hello.slots} slots, simulated in real time behind two gateways.${state.hello.burst ? ` The first ${state.hello.burst} arrive at ${state.hello.faster} times the rate, so that there is a queue.` : ''}${failed ? ` ${failed} failed.` : ''}${since}${late}`;
  document.title = `${percent(frame.sides[0].within)} → ${percent(frame.sides[1].within)} · Lengthwise demo`;
}

function choosePolicy(name) {
  if (![...$('policy').options].some(option => option.value === name)) $('policy').append(element('option', { value: name, textContent: name }));
  $('policy').value = name;
}

const niceTop = value => { const e = 10 ** Math.floor(Math.log10(value)); return [1, 2, 2.5, 5, 10].map(m => m * e).find(top => top >= value); };

function drawCurve(which) {
  const svg = $(`curve-${which}`), w = Math.max(200, svg.clientWidth), h = Math.max(90, svg.clientHeight);
  const points = state.points.filter(point => point[1 + which] != null || point[3 + which] != null);
  svg.setAttribute('viewBox', `0 0 ${w} ${h}`);
  if (points.length < 2) { svg.replaceChildren(shape('text', { x: w / 2, y: h / 2, 'text-anchor': 'middle' }, 'nothing has been answered yet')); return; }
  const span = Math.min(120, Math.max(20, points.at(-1)[0])), from = points.at(-1)[0] - span;
  const shown = points.filter(point => point[0] >= from);
  const top = niceTop(Math.max(0.02, ...shown.flatMap(point => [point[1 + which] ?? 0, point[3 + which] ?? 0])));
  const left = 48, right = 62, x = t => left + (w - left - right) * (t - from) / span, y = v => h - 18 - (h - 28) * v / top;
  const parts = [0, 0.5, 1].flatMap(share => [
    shape('path', { class: 'grid', d: `M${left} ${y(top * share)}H${w - right}` }),
    shape('text', { x: left - 6, y: y(top * share) + 4, 'text-anchor': 'end' }, share ? seconds(top * share) : '0')]);
  parts.push(shape('text', { x: left, y: h - 3 }, `${span.toFixed(0)} s ago`), shape('text', { x: w - right, y: h - 3, 'text-anchor': 'end' }, 'now'));
  const ends = [0, 1].map(side => shown.filter(point => point[1 + which + 2 * side] != null).at(-1)?.[1 + which + 2 * side]);
  const near = ends.every(end => end != null) && Math.abs(y(ends[0]) - y(ends[1])) < 14;
  [0, 1].forEach(side => {
    const values = shown.filter(point => point[1 + which + 2 * side] != null);
    const colour = side ? 'var(--right)' : 'var(--left)';
    if (values.length > 1) parts.push(shape('path', { class: 'line', stroke: colour, d: 'M' + values.map(point => `${x(point[0]).toFixed(1)} ${y(point[1 + which + 2 * side]).toFixed(1)}`).join('L') }));
    const shift = near ? ((ends[side] >= ends[1 - side] && (ends[0] !== ends[1] || side === 0)) ? -7 : 9) : 4;
    if (ends[side] != null) {
      const label = shape('text', { class: 'end', x: w - right + 6, y: y(ends[side]) + shift }, seconds(ends[side]));
      label.style.fill = colour;
      parts.push(label);
    }
  });
  svg.replaceChildren(...parts);
  svg.setAttribute('aria-label', `${$(`curve-${which}-title`).firstChild.textContent.trim()}: ${seconds(ends[0])} first come, first served, ${seconds(ends[1])} on the right`);
}

const drawCurves = () => [0, 1].forEach(drawCurve);

function drawVerdict(frame) {
  const hidden = !frame.verdict;
  if ($('verdict').hidden !== hidden && !hidden) scrollTo({ top: 0, behavior: still.matches ? 'auto' : 'smooth' });
  $('verdict').hidden = hidden;
  document.body.classList.toggle('ended', !hidden);
  if (hidden) return;
  $('headline').textContent = frame.verdict.headline;
  $('lead').textContent = frame.verdict.lead;
}

function offer(hello) {
  const chips = hello.predictors.map(name => element('label', {},
    element('input', { type: 'radio', name: 'predictor', value: name }), element('span', { textContent: words[name] ?? name })));
  $('predictors').replaceChildren(...chips);
  $('policy').replaceChildren(...hello.policies.map(name => element('option', { value: name, textContent: name })));
  [$('load').min, $('load').max] = hello.loads;
  document.querySelectorAll('.limit').forEach(each => { each.textContent = hello.within_s; });
  const why = ['put the gateway in front; it changes nothing and logs', 'what another order would have gained', 'watch your own traffic here', 'turn it on'];
  $('commands').replaceChildren(...hello.commands.map((command, place) => {
    const copy = element('button', { type: 'button', textContent: 'Copy', ariaLabel: `Copy ${command}` });
    copy.addEventListener('click', async () => { try { await navigator.clipboard.writeText(command); copy.textContent = 'Copied'; } catch { copy.textContent = 'Select it'; } });
    return element('li', {}, element('code', { textContent: command }), copy, element('span', { textContent: why[place] }));
  }));
}

// --- Controls ------------------------------------------------------------------------------------------------------

let pending = null;
$('load').addEventListener('input', () => {
  state.dragging = true;
  clearTimeout(pending);
  if (state.frame) $('load-text').textContent = `${Math.round(100 * $('load').value)} % of the capacity`;
  pending = setTimeout(async () => { await send({ load: Number($('load').value) }); setTimeout(() => { state.dragging = false; }, 400); }, 120);
});
$('predictors').addEventListener('change', event => send({ predictor: event.target.value }));
$('policy').addEventListener('change', () => { send({ policy: $('policy').value }); $('policy').blur(); });
$('finish').addEventListener('click', () => send({ finish: true }));
$('restart').addEventListener('click', () => send({ restart: true }));

function stored(value) {
  try { // storage may be blocked
    if (value !== undefined) sessionStorage.setItem('lengthwise-theme', value);
    return sessionStorage.getItem('lengthwise-theme');
  } catch { return value ?? null; }
}

if (stored()) document.documentElement.dataset.theme = stored();
$('theme').addEventListener('click', () => {
  const now = document.documentElement.dataset.theme ?? (matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light');
  document.documentElement.dataset.theme = stored(now === 'dark' ? 'light' : 'dark');
  readColours();
});
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', readColours);
addEventListener('resize', () => { if (state.hello) { boards.forEach(board => board.resize()); drawCurves(); } });

// --- The stream ----------------------------------------------------------------------------------------------------

const events = new EventSource('events');
events.addEventListener('hello', event => {
  state.hello = JSON.parse(event.data);
  state.points = state.hello.points;
  offer(state.hello);
  boards.forEach(board => board.resize());
});
events.addEventListener('frame', event => {
  const frame = JSON.parse(event.data);
  if (frame.lap !== state.lap) { state.lap = frame.lap; boards.forEach(board => board.bars.clear()); if (state.frame) state.points = []; }
  const grown = frame.point && frame.point[0] !== state.points.at(-1)?.[0];
  if (grown) state.points.push(frame.point);
  const first = !state.frame;
  state.frame = frame;
  drawVerdict(frame);
  boards.forEach((board, index) => { if (board.width !== board.canvas.clientWidth) board.resize(); board.aim(frame.sides[index]); });
  drawNumbers(frame);
  if (grown || first) drawCurves();
});
events.addEventListener('bye', () => {
  events.close();
  $('status').className = '';
  $('status').textContent = 'the demo has ended';
  document.querySelectorAll('.controls input, .controls select, .controls button').forEach(control => { control.disabled = true; });
});
events.onerror = () => { $('status').className = ''; $('status').textContent = 'the demo does not answer: is it running?'; };

readColours();
requestAnimationFrame(animate);
