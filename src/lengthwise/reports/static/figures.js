// Traces and layout of each figure are JSON in the page. Colours come from the style sheet, so that a change of the colour
// scheme redraws; narrow windows stack the panels.
const figures = Array.from(document.querySelectorAll('script[data-figure]'),
  each => ({name: each.dataset.figure, ...JSON.parse(each.textContent)}));

// Plotly is in the page, compressed. `ready` is resolved once the figures are drawn.
async function loadPlotly() {
  const packed = Uint8Array.from(atob(document.getElementById('plotly').textContent), letter => letter.charCodeAt(0));
  const unpacking = new DecompressionStream('gzip'), writer = unpacking.writable.getWriter();
  writer.write(packed);
  writer.close();
  const script = document.createElement('script');
  script.textContent = await new Response(unpacking.readable).text();
  document.head.append(script);
}
const ready = new Promise(resolve => document.addEventListener('DOMContentLoaded', async () => {
  await loadPlotly();
  setTimeout(() => { resolve(); figures.forEach(show); });  // an error is the page's, not the promise's
}));

function show(figure) {
  const css = getComputedStyle(document.documentElement), value = name => css.getPropertyValue(name).trim();
  const line = {gridcolor: value('--line'), linecolor: value('--line'), zerolinecolor: value('--rule'),
    automargin: true};
  const layout = structuredClone(figure.layout), width = document.getElementById(figure.name).clientWidth;
  const named = figure.data.filter(trace => trace.showlegend !== false && trace.name);
  const legendRows = Math.ceil(named.reduce((sum, trace) => sum + 50 + 7 * trace.name.length, 0) / (width - 80));
  const above = 34 + (named.length > 1 ? 12 + 28 * legendRows : 0);
  layout.template = {layout: {font: {family: 'system-ui, sans-serif', size: 12, color: value('--ink')},
    paper_bgcolor: 'rgba(0,0,0,0)', plot_bgcolor: 'rgba(0,0,0,0)', xaxis: line, yaxis: line, hovermode: 'closest',
    margin: {l: 60, r: 20, t: above, b: 50}, hoverlabel: {bgcolor: value('--panel'), font: {color: value('--ink')}},
    legend: {orientation: 'h', yref: 'container', y: 1, yanchor: 'top'}}};
  layout.showlegend = named.length > 1;
  layout.height += above - 34;
  if (layout.grid && layout.grid.columns > 1 && width < 700) {
    const panels = Object.keys(layout).filter(name => name.startsWith('xaxis')).length;
    layout.height = above + panels * layout.height / layout.grid.rows;
    layout.grid.rows = panels; layout.grid.columns = 1;
    Object.keys(layout).filter(name => name.startsWith('yaxis')).forEach(name => {
      delete layout[name].showticklabels;
      if (layout[name].categoryarray) wrapLabels(layout, layout[name]);
    });
  }
  const options = {responsive: true, displayModeBar: false};
  Plotly.react(figure.name, structuredClone(figure.data), layout, options);
}
// Long names leave no space for the marks: names take two lines, and titles end at the right edge.
function wrapLabels(layout, axis) {
  const wrapped = name => {
    const breaks = Array.from(name.matchAll(/, /g), found => found.index + 1);
    if (!breaks.length) return name;
    const middle = breaks.reduce((a, b) => Math.abs(a - name.length / 2) <= Math.abs(b - name.length / 2) ? a : b);
    return name.slice(0, middle) + '<br>' + name.slice(middle + 1);
  };
  Object.assign(axis, {tickvals: axis.categoryarray, ticktext: axis.categoryarray.map(wrapped), tickfont: {size: 10}});
  layout.annotations.forEach(title => Object.assign(title, {x: 1, xanchor: 'right'}));
}
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => figures.forEach(show));
matchMedia('(max-width: 760px)').addEventListener('change', () => figures.forEach(show));
