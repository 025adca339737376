// How long a group waited, as two distributions over the looks of the time that is shown.

import {el, say} from './dom.js';
import {clock, count, took} from './format.js';

const head = titles => el('thead', {role: 'rowgroup'}, el('tr', {role: 'row'}, ...titles.map((t, i) =>
  el('th', {role: 'columnheader', scope: 'col', class: i ? 'figure' : undefined}, t))));

const row = (title, cells, part) => el('tr', {role: 'row'}, el('th', {scope: 'row', role: 'rowheader'}, title),
  ...cells.map((c, i) => el('td', {role: 'cell', class: 'figure'}, c, ...i === part?.at ? [part.bar] : [])));

// bar is a part of the whole, which stands beside it in text.
function bar(part) {
  const inner = el('i'), frame = el('span', {class: 'gauge free', 'aria-hidden': 'true'}, inner);
  inner.style.width = (100 * part).toFixed(1) + '%';
  return frame;
}

const percent = (v, all) => all > 0 ? (100 * v / all).toFixed(1) + '%' : '–';

// long is a time in seconds.
const long = s => s >= 3600 ? (s / 3600).toFixed(1) + ' h' : s >= 120 ? (s / 60).toFixed(0) + ' min' : s.toFixed(0) + ' s';

// Waiting shows what the series say of it.
export class Waiting {
  constructor() {
    this.when = el('span', {class: 'whole'});
    this.turns = el('div', {class: 'box'});
    this.stalls = el('div', {class: 'box'});
    this.node = el('section', {}, el('h2', {}, 'How long it waited ', this.when),
      el('p', {class: 'help'}, 'The kernel counts sums: of each look, from one point of the charts to the next, the mean is ' +
        'known. How long a single wait was is not.'),
      el('div', {class: 'answers'}, this.turns, this.stalls));
  }

  show(waiting) {
    const {turns, stalls} = waiting ?? {};
    say(this.when, waiting && (turns || stalls) ? `${clock(Date.parse(waiting.from))} to ${clock(Date.parse(waiting.to))}` : '');
    this.fill(this.turns, 'waits', 'Waits for a CPU, by how long one took on average', turns && this.turnRows(turns),
      ['Took', 'Looks', 'Waits', 'Of waits', 'Waited']);
    this.fill(this.stalls, 'stalls', 'Part of the time in which a task waited: how long that was so', stalls &&
      stalls.filter(s => s.cpu_seconds + s.memory_seconds + s.disk_seconds > 0).map(s =>
        row(s.up_to ? `up to ${+(100 * s.up_to).toFixed(2)}%` : 'nothing', [s.cpu_seconds, s.memory_seconds, s.disk_seconds]
          .map(v => v ? long(v) : ''))), ['Waited', 'CPU', 'Memory', 'Disks']);
  }

  fill(box, id, title, rows, titles) {
    box.replaceChildren(el('h3', {id}, title), rows ? el('div', {class: 'scroll', tabindex: 0, role: 'region',
      'aria-labelledby': id}, el('table', {role: 'table', 'aria-labelledby': id}, head(titles),
      el('tbody', {role: 'rowgroup'}, ...rows))) : el('p', {},
      'Not known: the kernel does not count it for this group, its collector was off, or nothing is recorded.'));
  }

  turnRows(all) {
    const waits = all.reduce((n, t) => n + t.turns, 0);
    return all.filter(t => t.looks).map(t => row(t.up_to_seconds ? 'up to ' + took(t.up_to_seconds) :
      'over ' + took(t.over_seconds), [String(t.looks), count(t.turns), percent(t.turns, waits), took(t.waited_seconds)],
    {at: 2, bar: bar(waits ? t.turns / waits : 0)}));
  }
}
