// The dashboard: reads snapshots from /lengthwise/v1/events and draws them. No library, no file from another host.
'use strict';

const API = 'lengthwise/v1/';
const QUANTILES = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9];
const KEPT = 800;
const GAP = 2; // buckets without a request that ended: longer, the line breaks
const $ = id => document.getElementById(id);
const state = { history: null, last: null, ended: [], series: [], prefix: new Map(), metric: 0, statistic: 0, key: stored('key'), scale: [0, 4], drawnAt: 0 };

// --- Small helpers -------------------------------------------------------------------------------------------------

function stored(name, value) {
  try { // storage may be blocked
    if (value !== undefined) sessionStorage.setItem('lengthwise-' + name, value);
    return sessionStorage.getItem('lengthwise-' + name);
  } catch { return value ?? null; }
}

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

const tenantColour = number => `var(--t${number % 6})`;
const policyColour = number => `var(--t${(number * 2 + 3) % 6})`;
const seconds = s => s >= 100 ? s.toFixed(0) + ' s' : s >= 1 ? s.toFixed(1) + ' s' : (1000 * s).toFixed(0) + ' ms';
const count = n => n >= 10000 ? (n / 1000).toFixed(0) + 'k' : Math.round(n).toLocaleString('en');
// The token axis: from one power of ten to another, fitted to the lengths that are shown.
const across = tokens => 100 * Math.min(1, Math.max(0, (Math.log10(Math.max(1, tokens)) - state.scale[0]) / (state.scale[1] - state.scale[0])));
const decades = () => Array.from({ length: state.scale[1] - state.scale[0] + 1 }, (_, i) => 10 ** (state.scale[0] + i));
const decadeName = tokens => tokens >= 1000 ? tokens / 1000 + 'k' : String(tokens);

// A request as it is sent: number, mu, sigma, cap, tenant, source, prompt tokens, then what its state adds.
const common = row => ({ number: row[0], mu: row[1], sigma: row[2], cap: row[3], tenant: row[4], source: row[5], prompt: row[6] });
const waitingRequest = row => ({ ...common(row), waited: row[7] });
const runningRequest = row => ({ ...common(row), engine: row[7], soFar: row[8], ran: row[9] });
const endedRequest = row => ({ ...common(row), tokens: row[7], cut: row[8], queued: row[9], ttft: row[10], e2e: row[11], policy: row[12], at: row[13], engine: row[14] });
// A prediction is a log-t: quantile = min(cap, exp(mu + sigma * t)).
const quantile = (r, q) => Math.min(r.cap, Math.exp(r.mu + r.sigma * state.history.quantiles[q]));
const predicted = r => r.source > 0;
const tenantName = number => state.last?.tenants[number] ?? state.history.tenants[number] ?? '';

// --- Requests ------------------------------------------------------------------------------------------------------

class Lane {
  constructor(id, came) {
    this.box = $(id).querySelector('.rows');
    this.more = $(id).querySelector('.more');
    this.came = came;
    this.rows = new Map();
    this.axis = $(id).querySelector('.axis');
    this.drawAxis();
    this.box.addEventListener('click', event => this.open(event.target.closest('.row')));
    this.box.addEventListener('keydown', event => { if (event.key === 'Enter') this.open(event.target.closest('.row')); });
    this.empty = element('p', { className: 'empty', textContent: 'none' });
    this.box.append(this.empty);
  }

  open(row) {
    const shown = [...this.rows].find(([, other]) => other === row);
    if (shown) showRequest(this.requests.get(shown[0]), row.title);
  }

  drawAxis() {
    this.axis.replaceChildren(...decades().map(tokens => {
      const tick = element('span', { textContent: decadeName(tokens) });
      tick.style.left = across(tokens) + '%';
      return tick;
    }));
  }

  draw(requests, total, note, words) {
    const pitch = 1.5 * this.rem;
    const fit = Math.max(1, Math.floor(this.box.clientHeight / pitch));
    const shown = requests.slice(0, fit);
    const left = new Set(this.rows.keys());
    const known = shown.filter(request => left.has(request.number)).length;
    const moves = known >= shown.length / 2; // where most rows are new every second, moving them would overlap
    this.box.classList.toggle('still', !moves);
    this.requests = new Map(shown.map(request => [request.number, request]));
    shown.forEach((request, place) => {
      left.delete(request.number);
      const row = this.rows.get(request.number) ?? this.make(request, place, pitch, moves);
      row.style.transform = `translateY(${place * pitch}px)`;
      this.fill(row, request, note(request, place), words(request, place));
    });
    for (const number of left) { this.rows.get(number).remove(); this.rows.delete(number); }
    this.empty.hidden = shown.length > 0;
    this.more.textContent = total > shown.length ? `and ${count(total - shown.length)} more` : '';
  }

  get rem() { return parseFloat(getComputedStyle(document.documentElement).fontSize); }

  make(request, place, pitch, moves) {
    const row = element('div', { className: moves ? 'row new' : 'row', role: 'listitem', tabIndex: 0 });
    const track = element('div', { className: 'track' }, ...['wide', 'half', 'mid', this.came].filter(Boolean).map(c => element('i', { className: c })));
    row.append(element('span', { className: 'tag' }), track, element('span', { className: 'note' }));
    row.style.transform = `translateY(${(place + (moves ? 0.6 : 0)) * pitch}px)`;
    this.box.append(row);
    this.rows.set(request.number, row);
    requestAnimationFrame(() => row.classList.remove('new'));
    return row;
  }

  fill(row, request, note, words) {
    const [tag, track, text] = row.children;
    const span = (part, low, high) => { part.style.left = low + '%'; part.style.width = Math.max(0.6, high - low) + '%'; };
    tag.style.background = tenantColour(request.tenant);
    row.classList.toggle('prior', !predicted(request));
    span(track.children[0], across(quantile(request, 0.05)), across(quantile(request, 0.95)));
    span(track.children[1], across(quantile(request, 0.25)), across(quantile(request, 0.75)));
    track.children[2].style.left = across(quantile(request, 0.5)) + '%';
    if (this.came === 'sofar') track.children[3].style.width = across(request.soFar) + '%';
    if (this.came === 'came') {
      track.children[3].style.left = across(request.tokens) + '%';
      track.children[3].classList.toggle('cut', Boolean(request.cut));
    }
    text.textContent = note;
    row.setAttribute('aria-label', words);
    row.title = words;
  }
}

const lanes = { queue: new Lane('lane-queue'), slots: new Lane('lane-slots', 'sofar'), ended: new Lane('lane-ended', 'came') };

// Fit the axis to the lengths of the last snapshots: whole powers of ten, at least two of them.
function fitAxis(requests) {
  const ends = requests.flatMap(r => [quantile(r, 0.05), quantile(r, 0.95), r.tokens ?? quantile(r, 0.5)]).map(t => Math.max(1, t));
  if (!ends.length) return;
  const low = Math.floor(Math.log10(Math.min(...ends)) + 1e-9), high = Math.ceil(Math.log10(Math.max(...ends)) - 1e-9);
  const scale = [Math.min(low, Math.max(high, 2) - 2), Math.max(high, low + 2)];
  if (scale[0] === state.scale[0] && scale[1] === state.scale[1]) return;
  state.scale = scale;
  Object.values(lanes).forEach(lane => lane.drawAxis());
  drawCalibration();
}

function prediction(r) {
  const [low, mid, high] = [0.05, 0.5, 0.95].map(q => count(quantile(r, q)));
  const from = predicted(r) ? 'predicted by ' + state.history.sources[r.source] : 'not predicted in time (grey): the wide prior';
  return `request ${r.number}, ${tenantName(r.tenant)}, prompt of ${count(r.prompt)} tokens, ${from}: ${low} to ${high} tokens, median ${mid}`;
}

function drawRequests(snapshot) {
  const queue = snapshot.queue.map(waitingRequest);
  const slots = snapshot.slots.map(runningRequest);
  lanes.queue.draw(queue, snapshot.waiting, r => seconds(r.waited), (r, place) => `number ${place + 1}, ${prediction(r)}; waited ${seconds(r.waited)}`);
  lanes.slots.draw(slots, snapshot.running, r => count(r.soFar) + ' tok', r => `on ${r.engine}, ${prediction(r)}; about ${count(r.soFar)} so far in ${seconds(r.ran)}`);
  const ended = state.ended.slice(-60).reverse();
  fitAxis([...queue, ...slots, ...state.ended.slice(-300)]);
  lanes.ended.draw(ended, 0, r => count(r.tokens) + ' tok', r => `${prediction(r)}; ${r.cut ? 'cut at' : 'ended at'} ${count(r.tokens)} on ${engineName(r.engine)} in ${seconds(r.e2e)}, of which it waited ${seconds(r.queued)}`);
}

const engineName = number => state.last?.engine_names[number] ?? state.history.engine_names[number] ?? '';

// What is known of a request: of an open one also its place, its key and why its engine was chosen.
async function showRequest(request, words) {
  $('request-title').textContent = `Request ${request.number}`;
  $('request-words').textContent = words;
  $('request-facts').replaceChildren();
  $('request-dialog').showModal();
  if (request.tokens !== undefined) return;
  try {
    const { requests: [found] } = await (await call('explain/number:' + request.number)).json();
    const facts = { id: found.request_id, state: found.state, model: found.model, engine: found.engine, place: found.position,
      waited: seconds(found.waited_s), policy: found.policy.name, key: found.policy.key, ...found.policy.terms, router: found.router?.name, ...found.router?.terms };
    $('request-facts').replaceChildren(...Object.entries(facts).filter(([, value]) => value != null && typeof value !== 'object').flatMap(([name, value]) =>
      [element('dt', { textContent: name.replaceAll('_', ' ') }), element('dd', { textContent: typeof value === 'number' ? Number(value.toPrecision(5)) : value })]),
      element('dt', { textContent: 'reason' }), element('dd', { textContent: (found.policy.formula ?? '').split('\n')[0] }));
  } catch (error) { $('request-facts').replaceChildren(element('dt', { textContent: 'now' }), element('dd', { textContent: error.status === 404 ? 'it has ended' : error.message })); }
}
$('request-close').addEventListener('click', () => $('request-dialog').close());

// --- Numbers and engines -------------------------------------------------------------------------------------------

function drawNumbers(snapshot) {
  const policy = snapshot.policies[snapshot.policy];
  $('policy').textContent = policy;
  $('router').textContent = snapshot.router ?? 'none (one engine)';
  $('waiting').textContent = count(snapshot.waiting);
  $('running').textContent = count(snapshot.running);
  state.rates = [...(state.rates ?? []).slice(-4), [snapshot.finished_per_s, snapshot.tokens_per_s]];
  const mean = index => state.rates.reduce((sum, rates) => sum + rates[index], 0) / state.rates.length;
  $('rate').textContent = mean(0).toFixed(1);
  $('tokens').textContent = count(mean(1));
  const times = state.ended.filter(r => r.at > snapshot.now - 60).map(r => r.ttft).sort((a, b) => a - b);
  $('ttft').textContent = times.length ? seconds(times[Math.floor(times.length / 2)]) : '–';
  document.title = `${count(snapshot.waiting)} waiting · ${policy} · Lengthwise`;
  $('foot').textContent = `${count(snapshot.failed)} requests failed since the start. Viewers: ${snapshot.viewers}. No prompt or answer is sent to this page.`;
}

function meter(kind, label, share, text) {
  const bar = element('i');
  bar.style.width = 100 * Math.min(1, share ?? 0) + '%';
  return element('div', { className: 'meter ' + kind }, label, element('div', {}, bar), element('em', { textContent: text }));
}

function drawEngines(snapshot) {
  const percent = share => share == null ? 'not reported' : Math.round(100 * share) + ' %';
  $('engines').replaceChildren(...snapshot.engines.map(engine => {
    const prefix = recentPrefix(engine);
    const name = { closed: 'up', open: 'failing', half_open: 'tried again' }[engine.state] ?? engine.state;
    const words = `${engine.name}, ${name}, ${engine.running} of ${engine.slots} running, KV memory ${percent(engine.kv)}, prefix hits ${percent(prefix)}`;
    return element('div', { className: 'engine ' + engine.state, role: 'listitem', ariaLabel: words },
      element('b', { textContent: engine.name }, element('span', { textContent: name })),
      meter('slots', 'running', engine.running / engine.slots, `${engine.running}/${engine.slots}`),
      meter('kv', 'KV', engine.kv, engine.kv == null ? '–' : percent(engine.kv)),
      meter('prefix', 'prefix', prefix, prefix == null ? '–' : percent(prefix)));
  }));
}

// The share of prompt tokens found in the prefix cache, over the last minute.
function recentPrefix(engine) {
  if (!engine.prefix) return null;
  const seen = state.prefix.get(engine.name) ?? [];
  seen.push(engine.prefix);
  if (seen.length > 60) seen.shift();
  state.prefix.set(engine.name, seen);
  const [hits, tokens] = [0, 1].map(i => engine.prefix[i] - seen[0][i]);
  return tokens > 0 ? hits / tokens : engine.prefix[1] ? engine.prefix[0] / engine.prefix[1] : null;
}

// --- Calibration ---------------------------------------------------------------------------------------------------

function drawCalibration() {
  const answers = state.ended.filter(r => predicted(r) && r.sigma > 0 && !r.cut);
  const inside = r => r.tokens >= quantile(r, 0.05) - 0.5 && r.tokens <= quantile(r, 0.95) + 0.5;
  const covered = answers.filter(inside).length / answers.length;
  $('coverage').replaceChildren(answers.length ? Math.round(100 * covered) + '' : '–', element('small', { textContent: answers.length ? '%' : '' }));
  drawScatter(answers, inside);
  const shares = QUANTILES.map(q => answers.filter(r => r.tokens <= quantile(r, q) + 0.5).length / answers.length);
  drawReliability(answers.length ? shares : []);
  $('calibration-words').textContent = answers.length
    ? `The 90 % interval holds ${Math.round(100 * covered)} % of the last ${count(answers.length)} answers; ${Math.round(100 * shares[4])} % are below the median.`
    : 'No predicted answer has ended yet.';
}

function drawLearned(learned) {
  const tau = value => value.toFixed(2).replace('0.', '.');
  const taus = learned?.alone == null || learned.learned == null ? '' : `: tau ${tau(learned.alone)} → ${tau(learned.learned)} on the last ${count(learned.recent)}`;
  $('learned-words').textContent = learned ? `Learned from ${count(learned.answers)} answers${taus}.` : 'Learning is off.';
}

// The size of a picture, and the space for the labels of its axes: text has the same size in every window.
function space(svg) {
  const size = parseFloat(getComputedStyle(svg).fontSize);
  return [Math.max(200, svg.clientWidth), Math.max(160, svg.clientHeight), 2.3 * size, 1.6 * size];
}

function drawScatter(answers, inside) {
  const [w, h, left, bottom] = space($('scatter'));
  const x = tokens => left + (w - left - 8) * across(tokens) / 100;
  const y = tokens => h - bottom - (h - bottom - 8) * across(tokens) / 100;
  const dots = list => list.map(r => `M${x(quantile(r, 0.5)).toFixed(1)} ${y(r.tokens).toFixed(1)}h0`).join('');
  const ticks = decades(), low = ticks[0], high = ticks.at(-1);
  $('scatter').setAttribute('viewBox', `0 0 ${w} ${h}`);
  $('scatter').replaceChildren(
    ...ticks.flatMap((t, i) => [
      shape('path', { class: 'grid', d: `M${x(t)} ${y(low)}V${y(high)}M${x(low)} ${y(t)}H${x(high)}` }),
      shape('text', { x: x(t), y: h - 6, 'text-anchor': i === ticks.length - 1 ? 'end' : 'middle' }, decadeName(t)),
      shape('text', { x: left - 6, y: y(t) + 4, 'text-anchor': 'end' }, decadeName(t))]),
    shape('path', { class: 'ideal', d: `M${x(low)} ${y(low)}L${x(high)} ${y(high)}` }),
    shape('path', { class: 'dots', d: dots(answers.filter(inside)) }),
    shape('path', { class: 'dots out', d: dots(answers.filter(r => !inside(r))) }));
  $('scatter').setAttribute('aria-label', `Predicted median against actual length of ${answers.length} answers, ${answers.filter(inside).length} of them inside their 90 % interval`);
}

function drawReliability(shares) {
  const [w, h, left, bottom] = space($('reliability'));
  const x = v => left + (w - left - 8) * v, y = v => h - bottom - (h - bottom - 8) * v;
  const points = shares.map((share, i) => `${x(QUANTILES[i]).toFixed(1)} ${y(share).toFixed(1)}`);
  $('reliability').setAttribute('viewBox', `0 0 ${w} ${h}`);
  $('reliability').replaceChildren(
    ...[0, 0.5, 1].flatMap(t => [
      shape('path', { class: 'grid', d: `M${x(t)} ${y(0)}V${y(1)}M${x(0)} ${y(t)}H${x(1)}` }),
      shape('text', { x: x(t), y: h - 6, 'text-anchor': t === 1 ? 'end' : 'middle' }, 100 * t + ' %'),
      shape('text', { x: left - 6, y: y(t) + 4, 'text-anchor': 'end' }, 100 * t + '')]),
    shape('path', { class: 'ideal', d: `M${x(0)} ${y(0)}L${x(1)} ${y(1)}` }),
    ...(points.length ? [shape('path', { class: 'line', stroke: 'var(--predicted)', d: 'M' + points.join('L') }),
      shape('path', { class: 'dots', d: points.map(p => `M${p}h0`).join('') })] : []));
  $('reliability').setAttribute('aria-label', shares.length
    ? 'Share of answers below predicted quantiles: ' + shares.map((s, i) => `${Math.round(100 * QUANTILES[i])} %: ${Math.round(100 * s)} %`).join(', ')
    : 'No answers yet');
}

// --- Latency -------------------------------------------------------------------------------------------------------

// A point of the series: bucket, policy, tenant, requests, then mean and P99 of TTFT, E2E and per-token latency,
// requests with latency limits, those of them within all their limits.
function drawLatency() {
  const svg = $('series'), [w, h, short, bottom] = space(svg), left = 1.6 * short;
  const value = point => point[4 + 2 * state.metric + state.statistic];
  const points = state.series;
  svg.setAttribute('viewBox', `0 0 ${w} ${h}`);
  if (!points.length) { svg.replaceChildren(shape('text', { x: w / 2, y: h / 2, 'text-anchor': 'middle' }, 'nothing has ended yet')); drawGroups(); return; }
  const now = state.last?.now ?? state.history.now;
  const last = Math.max(points.at(-1)[0], now / state.history.bucket_s - 1), first = Math.min(points[0][0], last - 8);
  const top = niceTop(Math.max(...points.map(value)));
  const x = bucket => left + (w - left - 8) * (bucket - first) / (last - first);
  const y = v => h - bottom - (h - bottom - 14) * Math.min(1, v / top);
  const parts = [];
  for (const v of [0, 0.25, 0.5, 0.75, 1]) parts.push(shape('path', { class: 'grid', d: `M${left} ${y(v * top)}H${w - 8}` }),
    shape('text', { x: left - 6, y: y(v * top) + 4, 'text-anchor': 'end' }, v ? seconds(v * top) : '0'));
  const minutes = (last - first) * state.history.bucket_s / 60;
  parts.push(shape('text', { x: left, y: h - 4 }, minutes >= 2 ? `${Math.round(minutes)} min ago` : `${Math.round(60 * minutes)} s ago`), shape('text', { x: w - 8, y: h - 4, 'text-anchor': 'end' }, 'now'));
  parts.push(...policyBands(points, x, y, top, w));
  for (const tenant of new Set(points.map(p => p[2]))) {
    let d = '', before = null;
    for (const point of points.filter(p => p[2] === tenant)) {
      const [across, up] = [x(point[0]).toFixed(1), y(value(point)).toFixed(1)];
      d += before === null || point[0] - before > GAP ? `M${across} ${up}h0` : `L${across} ${up}`; // time without traffic is a gap
      before = point[0];
    }
    parts.push(shape('path', { class: 'line', stroke: tenantColour(tenant), d }));
  }
  svg.replaceChildren(...parts);
  drawGroups();
}

// A tint behind the time in which each policy was in force.
function policyBands(points, x, y, top, w) {
  const changes = [];
  for (const [bucket, policy] of points) if (changes.at(-1)?.policy !== policy) changes.push({ bucket, policy });
  return changes.flatMap(({ bucket, policy }, i) => {
    const start = x(bucket), end = i + 1 < changes.length ? x(changes[i + 1].bucket) : w - 8;
    const colour = policyColour(policy);
    const band = shape('rect', { class: 'band', x: start, width: Math.max(1, end - start), y: y(top), height: y(0) - y(top), fill: colour });
    const name = shape('text', { x: start + 4, y: y(top) - 3 }, end - start > 60 ? state.last.policies[policy] : '');
    return [band, name];
  });
}

function niceTop(most) {
  const step = 10 ** Math.floor(Math.log10(Math.max(most, 1e-4)));
  return [1, 2, 4, 6, 8, 10].map(k => k * step).find(v => v >= most) ?? 10 * step;
}

function drawGroups() {
  const groups = new Map();
  const inForce = state.last?.policy; // means under several policies would be those of different traffic
  const since = state.series.findLastIndex(point => point[1] !== inForce) + 1;
  for (const [bucket, policy, tenant, n, ttft, , e2e, , token, , limited, met] of state.series.slice(since)) {
    const sums = groups.get(policy + ' ' + tenant) ?? { policy, tenant, n: 0, sums: [0, 0, 0], limited: 0, met: 0, buckets: new Set() };
    sums.n += n;
    sums.limited += limited;
    sums.met += met;
    sums.buckets.add(bucket);
    [ttft, e2e, token].forEach((v, i) => { sums.sums[i] += n * v; });
    groups.set(policy + ' ' + tenant, sums);
  }
  const policies = state.last?.policies ?? state.history.policies;
  const attained = g => g.limited ? [(100 * g.met / g.limited).toFixed(1) + ' %', (g.met / (g.buckets.size * state.history.bucket_s)).toFixed(2)] : ['–', '–'];
  $('groups').replaceChildren(...[...groups.values()].sort((a, b) => a.policy - b.policy || a.tenant - b.tenant).map(g =>
    element('tr', {}, ...[tenantName(g.tenant), count(g.n), ...g.sums.map(s => seconds(s / g.n)), ...attained(g)].map(t => element('td', { textContent: t })))));
  $('tenants').replaceChildren(...[...new Set(state.series.map(p => p[2]))].map(tenant => {
    const key = element('i', { className: 'key half' });
    key.style.background = tenantColour(tenant);
    return element('span', {}, key, tenantName(tenant));
  }));
  $('groups').parentElement.caption.textContent = `Mean by tenant since ${policies[inForce] ?? 'the policy'} is in force`;
  const words = [...groups.values()].map(g => `${policies[g.policy]}, ${tenantName(g.tenant)}: mean ${seconds(g.sums[state.metric] / g.n)}`).join('; ');
  $('series').setAttribute('aria-label', `${['TTFT', 'E2E latency', 'Per-token latency'][state.metric]} over time. ${words}`);
}

for (const kind of ['metric', 'statistic']) {
  const buttons = document.querySelectorAll(`[data-${kind}]`);
  buttons.forEach(button => button.addEventListener('click', () => {
    state[kind] = Number(button.dataset[kind]);
    buttons.forEach(other => other.setAttribute('aria-pressed', String(other === button)));
    if (state.history) drawLatency();
  }));
}

// --- What if -------------------------------------------------------------------------------------------------------

function chips(box, kind, names, chosen) {
  box.replaceChildren(...names.map(name => element('label', {},
    element('input', { type: 'checkbox', name: kind, value: name, checked: chosen.includes(name) }), element('span', { textContent: name }))));
}

function offerWhatIf(snapshot) {
  const n = snapshot.engines.length, policy = snapshot.policies[snapshot.policy];
  chips($('what-policies'), 'policy', [...new Set([policy, ...state.history.known_policies])], [...new Set([policy, 'fcfs', 'lengthwise'])].slice(0, 3));
  chips($('what-engines'), 'engines', [...new Set([Math.max(1, n - 1), n, n + 1, n + 2, 2 * n, 4 * n])].sort((a, b) => a - b), [n, n + 1]);
}

$('what-if').addEventListener('submit', async event => {
  event.preventDefault();
  const chosen = kind => [...document.querySelectorAll(`#what-if [name=${kind}]:checked`)].map(input => input.value);
  const button = $('what-if').querySelector('button');
  const question = { policies: chosen('policy'), engines: chosen('engines').map(Number), engine: $('what-engine').value };
  if (!question.policies.length || !question.engines.length) return showAnswer('Choose at least one policy and one number of engines.');
  button.disabled = true;
  showAnswer('Simulating, at most two minutes …');
  try {
    const answer = await call('what-if', { method: 'POST', body: JSON.stringify(question) });
    showAnswers(await answer.json());
  } catch (error) { showAnswer(error.message, 'error'); }
  button.disabled = false;
});

function showAnswer(words, kind = 'hint') { $('answers').replaceChildren(element('p', { className: kind, textContent: words })); }

function showAnswers({ now, answers, complete }) {
  const error = Math.round(100 * Math.abs(now.simulated_over_measured - 1));
  const span = now.seconds >= 120 ? Math.round(now.seconds / 60) + ' min' : Math.round(now.seconds) + ' s';
  const intro = `${count(now.requests)} requests of ${span}, against \`${now.policy}\` on ${now.engines} now. The simulator's mean E2E for that is ${error} % ${now.simulated_over_measured < 1 ? 'below' : 'above'} the measured one.`;
  $('answers').replaceChildren(element('p', { className: 'hint' }, ...marked(intro)), element('ul', {}, ...answers.map(answer =>
    element('li', { title: answer.figures }, element('span', {}, ...marked(answer.words)), ratioBars(answer)))));
  if (!complete) $('answers').append(element('p', { className: 'hint', textContent: 'The time limit was reached before the others were simulated.' }));
}

// The last hour under another policy, kept up to date by the gateway: the same requests, so that policies can be compared.
function drawBeside(beside) {
  if (!beside) return;
  const factor = name => { const found = beside.over[name]; return found ? found[0] >= 10 ? found[0].toFixed(0) + 'x' : found[0].toFixed(1) + 'x' : '–'; };
  const share = v => (100 * v).toFixed(0) + ' %';
  const within = beside.within ? `; within 2 s ${share(beside.within[0])} instead of ${share(beside.within[1])}` : '';
  $('beside-title').textContent = `the last ${count(beside.now.requests)} requests under ${beside.policy} instead of ${beside.now.policy}, simulated`;
  $('beside').textContent = `TTFT ${factor('ttft_p50')}, per token ${factor('per_token_mean')}, E2E ${factor('e2e_mean')}${within}`;
  $('beside').title = `Simulated, over what runs now (${beside.now.policy}). ${beside.figures}`;
}

const marked = words => words.split('`').map((part, i) => i % 2 ? element('code', { textContent: part }) : part);

// Two bars from the middle, mean above P99: to the right is faster; a factor of 4 is the whole width.
function ratioBars(answer) {
  const bar = (ratio, y) => {
    const width = 60 * Math.min(1, Math.abs(Math.log2(ratio)) / 2);
    return shape('rect', { class: ratio >= 1 ? 'faster' : 'slower', x: ratio >= 1 ? 64 : 64 - width, y, width: Math.max(1, width), height: 8, rx: 2 });
  };
  return shape('svg', { viewBox: '0 0 128 24', 'aria-hidden': 'true' }, bar(answer.mean, 3), bar(answer.p99, 13), shape('path', { class: 'grid', d: 'M64 0V24' }));
}

// --- Policy switch, key, theme -------------------------------------------------------------------------------------

async function call(path, options = {}) {
  const headers = state.key ? { authorization: 'Bearer ' + state.key } : {};
  const answer = await fetch(API + path, { ...options, headers, cache: 'no-store', credentials: 'omit' });
  if (answer.ok) return answer;
  const body = await answer.json().catch(() => ({}));
  const error = new Error(body.error?.message ?? `The gateway answered ${answer.status}.`);
  error.status = answer.status;
  throw error;
}

$('switch').addEventListener('click', () => {
  $('switch-policy').value = state.last ? $('policy').textContent : '';
  $('switch-key').value = state.key ?? '';
  $('switch-access').hidden = Boolean(state.key);
  sayWrapper();
  $('switch-error').textContent = '';
  $('switch-dialog').showModal();
  $('switch-policy').select();
});
// A wrapper such as fair(...) is part of the policy's name: a name without it drops it.
function sayWrapper() {
  const wrapper = /^(\w+)\(/.exec($('policy').textContent)?.[1];
  const drops = wrapper && !$('switch-policy').value.trim().includes(wrapper + '(');
  $('switch-note').textContent = drops ? `This drops ${wrapper}(...): write ${wrapper}(${$('switch-policy').value.trim() || 'NAME'}) to keep it.` : '';
}
$('switch-policy').addEventListener('input', sayWrapper);
$('switch-cancel').addEventListener('click', () => $('switch-dialog').close());
$('switch-dialog').querySelector('form').addEventListener('submit', async event => {
  event.preventDefault();
  useKey($('switch-key').value.trim());
  try {
    await call('policy', { method: 'PUT', body: JSON.stringify({ policy: $('switch-policy').value.trim() }) });
    $('switch-dialog').close();
  } catch (error) {
    if (error.status === 401 || error.status === 403) $('switch-access').hidden = false;
    $('switch-error').textContent = error.message;
  }
});

function useKey(key) { state.key = key || null; stored('key', key); }

// `lengthwise serve` prints the URL with its admin token; the address then shows it no longer.
const token = /^#token=(.+)$/.exec(location.hash)?.[1];
if (token) {
  useKey(decodeURIComponent(token));
  window.history.replaceState(null, '', location.pathname);
}

function askKey(message) {
  $('key-words').textContent = `This gateway shows its queue to administrators only: ${message}`;
  return new Promise(resolve => {
    $('key-dialog').addEventListener('close', () => { useKey($('key').value.trim()); resolve(); }, { once: true });
    if (!$('key-dialog').open) $('key-dialog').showModal();
  });
}

const theme = stored('theme');
if (theme) document.documentElement.dataset.theme = theme;
$('theme').addEventListener('click', () => {
  const now = document.documentElement.dataset.theme ?? (matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light');
  document.documentElement.dataset.theme = stored('theme', now === 'dark' ? 'light' : 'dark');
});
addEventListener('resize', () => { if (state.last) { drawLatency(); drawCalibration(); } });

// --- The stream ----------------------------------------------------------------------------------------------------

function onHistory(history) {
  state.history = history;
  state.ended = history.finished.map(endedRequest);
  state.series = history.series;
  $('predictor').textContent = history.predictor;
  $('policies').replaceChildren(...history.known_policies.map(name => element('option', { value: name })));
}

function onSnapshot(snapshot) {
  const first = state.last === null;
  state.last = snapshot;
  if (first || snapshot.engines.length !== state.offered) { state.offered = snapshot.engines.length; offerWhatIf(snapshot); }
  state.ended.push(...snapshot.finished.map(endedRequest));
  state.ended.splice(0, state.ended.length - KEPT);
  if (snapshot.series) { // its first bucket may be in the history too
    const kept = state.series.filter(point => point[0] * state.history.bucket_s > snapshot.now - 3600 && !(point[0] >= snapshot.series[0]?.[0]));
    state.series = [...kept, ...snapshot.series];
  }
  drawNumbers(snapshot);
  drawLearned(snapshot.learned);
  drawRequests(snapshot);
  drawEngines(snapshot);
  if (first || snapshot.finished.length) drawCalibration();
  const bucket = Math.floor(snapshot.now / state.history.bucket_s);
  if (first || snapshot.series || bucket !== state.drawnAt) { state.drawnAt = bucket; drawLatency(); }
  drawBeside(snapshot.beside);
}

function onEvent(text) {
  const name = /^event: (.*)$/m.exec(text)?.[1], data = /^data: (.*)$/m.exec(text)?.[1];
  if (name === 'history') onHistory(JSON.parse(data));
  if (name === 'snapshot') onSnapshot(JSON.parse(data));
}

// fetch and not EventSource, which cannot send a key.
async function watch() {
  const answer = await call('events');
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  $('status').textContent = 'live';
  $('status').className = 'live';
  for (let held = ''; ;) {
    const { value, done } = await reader.read();
    if (done) return;
    const events = (held + value).split('\n\n');
    held = events.pop();
    events.forEach(onEvent);
  }
}

async function main() {
  for (let wait = 0.5; ; wait = Math.min(10, 2 * wait)) {
    const before = state.last;
    try { await watch(); } catch (error) {
      if (error.status === 401 || error.status === 403) { await askKey(error.message); wait = 0.25; continue; }
      if (error.status) $('status').textContent = error.message;
    }
    if (state.last !== before) wait = 0.5;
    $('status').className = '';
    if ($('status').textContent === 'live') $('status').textContent = 'connecting again';
    await new Promise(resolve => setTimeout(resolve, 1000 * wait));
  }
}

main();
