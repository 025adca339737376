// Memory of a group by NUMA node and page size: a bar for each node, and the same in a table.

import {el, say} from './dom.js';

const head = titles => el('thead', {role: 'rowgroup'}, el('tr', {role: 'row'}, ...titles.map((t, i) =>
  el('th', {role: 'columnheader', scope: 'col', class: i ? 'figure' : undefined}, t))));

// looks gives each kind of pages a pattern of its own, which is the same on every host: arm64 has pools of four sizes.
const looks = pages => {
  const own = {usual: 'pages-0', transparent: 'pages-1', cache: 'pages-5'}, pools = [2, 3, 4, 6];
  let pool = 0;
  return pages.map(p => own[p.name] ?? 'pages-' + pools[pool++ % pools.length]);
};

const swatch = look => el('i', {class: look, 'aria-hidden': 'true'});

// Nodes shows what the view of a group says of it.
export class Nodes {
  constructor() {
    this.bars = el('div', {class: 'nodes', 'aria-hidden': 'true'});
    this.key = el('ul', {class: 'key', 'aria-hidden': 'true'});
    this.table = el('table', {role: 'table', 'aria-labelledby': 'nodes'});
    this.missing = el('p', {hidden: true});
    this.node = el('section', {hidden: true}, el('h3', {id: 'nodes'}, 'Memory by NUMA node and page size'),
      el('p', {class: 'help'}, 'As charged to the group, read every minute. The longest bar is the node that has most of it. ' +
        'What is shared and private, and by which policy, tells ', el('code', {}, 'bulkhead memory INSTANCE'),
      '. It reads the maps of a database, which may wait meanwhile.'),
      el('div', {class: 'box'}, this.bars, this.key), this.missing,
      el('div', {class: 'scroll of-nodes', tabindex: 0, role: 'region', 'aria-labelledby': 'nodes'}, this.table));
  }

  show(of) {
    this.node.hidden = !of;
    const all = JSON.stringify(of ?? null);
    if (!of || this.all === all) return;
    this.all = all;
    const look = looks(of.pages);
    const most = Math.max(1, ...of.nodes.map(n => n.all.value));
    this.bars.replaceChildren(...of.nodes.map(n => {
      const parts = n.bytes.map((b, i) => {
        const part = el('i', {class: look[i], title: `${of.pages[i].title}: ${b.text}`});
        part.style.width = (100 * b.value / most).toFixed(2) + '%';
        return b.value > 0 ? part : null;
      });
      return el('div', {}, el('b', {}, `Node ${n.node}`), el('span', {class: 'stack'}, ...parts),
        el('span', {}, `${n.all.text}, ${n.share}`));
    }));
    this.key.replaceChildren(...of.pages.map((p, i) => el('li', {}, swatch(look[i]), p.title)));
    const cell = text => el('td', {role: 'cell', class: 'figure'}, text);
    const whole = of.nodes.some(n => n.total.value);
    this.table.replaceChildren(
      head(['Node', 'All', 'Share', ...of.pages.map(p => p.title), ...whole ? ['The node has', 'Free there'] : []]),
      el('tbody', {role: 'rowgroup'}, ...of.nodes.map(n => el('tr', {role: 'row'},
        el('th', {scope: 'row', role: 'rowheader'}, String(n.node)), cell(n.all.text), cell(n.share),
        ...n.bytes.map(b => cell(b.text)), ...whole ? [cell(n.total.text), cell(n.free.text)] : []))));
    this.missing.hidden = !of.missing;
    say(this.missing, of.missing ?? '');
  }
}
