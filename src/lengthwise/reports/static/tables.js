const units = {ms: 1e-3, us: 1e-6};
function sortKey(text) {
  const found = text.replaceAll(',', '').match(/^\s*([-+]?[0-9]*\.?[0-9]+)\s*(ms|us)?/);
  return found ? parseFloat(found[1]) * (units[found[2]] ?? 1) : null;
}
function compare(a, b) {
  const x = sortKey(a), y = sortKey(b);
  if (x !== null && y !== null) return x - y;
  return x === null && y === null ? a.localeCompare(b) : x === null ? 1 : -1;
}
document.querySelectorAll('th button').forEach(button => button.addEventListener('click', () => {
  const head = button.closest('th'), table = head.closest('table'), body = table.tBodies[0], place = head.cellIndex;
  const down = head.getAttribute('aria-sort') === 'ascending';
  table.querySelectorAll('th').forEach(other => other.removeAttribute('aria-sort'));
  head.setAttribute('aria-sort', down ? 'descending' : 'ascending');
  table.classList.add('sorted');
  const rows = Array.from(body.rows);
  rows.sort((a, b) => (down ? -1 : 1) * compare(a.cells[place].textContent, b.cells[place].textContent));
  body.append(...rows);
}));
