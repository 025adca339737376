// The host as compartments: what each group may have, has and waits for.

import {el, keyed, mark, say} from './dom.js';
import {cores, count, percent, rate, size} from './format.js';

// limitOf is a limit of a group of which it is known how much is used.
const limitOf = (g, key) => g.may.find(l => l.key === key);

// gauge is a bar with its text: what a group has of what it may have. Without a limit it is of the host, and dashed.
function gauge(cell, text, part, limited, bites) {
  if (!cell.bar) {
    cell.bar = el('i');
    cell.frame = el('span', {class: 'gauge', 'aria-hidden': 'true'}, cell.bar);
    cell.words = el('span');
    cell.node.append(cell.words, cell.frame);
  }
  say(cell.words, text);
  cell.frame.hidden = part === undefined;
  cell.bar.style.width = Math.min(100 * (part ?? 0), 100).toFixed(1) + '%';
  cell.frame.classList.toggle('free', !limited);
  cell.node.classList.toggle('bites', !!bites);
}

function has(cell, g, name, limit, whole, unit = '') {
  const shown = g.shown[name];
  if (shown === undefined) return gauge(cell, '–', undefined);
  if (limit) return gauge(cell, `${shown} of ${limit.held}${unit}`, limit.part ?? 0, true, limit.bites);
  gauge(cell, shown + unit, whole ? g.values[name] / whole : undefined, false);
}

const columns = [
  {title: 'CPU', help: 'cores in use, of its limit', show: (c, g, host) =>
    has(c, g, 'cpu', limitOf(g, 'cpu.limit'), host.values.cpus)},
  {title: 'Memory', help: 'charged to it, page cache too, of its limit', show: (c, g, host) =>
    has(c, g, 'memory', limitOf(g, 'memory.max'), host.values.memory)},
  {title: 'Waits', help: 'part of the time in which a task waited: for CPU (c), memory (m) or disks (d)',
    show: (c, g) => gauge(c, g.shown.wait ?? '–', g.shown.wait && g.values.wait, false, g.values.wait >= 0.1)},
  {title: 'Held', help: 'part of the periods in which its CPU limit held it back',
    show: (c, g) => gauge(c, g.shown.held ?? '–', g.shown.held && g.values.held, false, g.values.held >= 0.1)},
  {title: 'Reads', help: 'bytes from disks in a second, of its limit',
    show: (c, g) => has(c, g, 'read', limitOf(g, 'io.read.bandwidth'), 0, '/s')},
  {title: 'Writes', help: 'bytes to disks in a second, of its limit',
    show: (c, g) => has(c, g, 'write', limitOf(g, 'io.write.bandwidth'), 0, '/s')},
  {title: 'Network', help: 'bytes sent and received in a second', show: (c, g) => has(c, g, 'net', null, 0, '/s')},
  {title: 'Threads', help: 'threads, of their limit', show: (c, g) => has(c, g, 'tasks', limitOf(g, 'tasks'))},
];

function row(g, link) {
  const name = el('a', {});
  const role = el('small');
  const verdict = el('td', {role: 'cell', 'data-label': 'State', class: 'verdict'});
  const head = el('th', {scope: 'row', role: 'rowheader'}, name, ' ', role);
  const cells = columns.map(c => ({node: el('td', {role: 'cell', 'data-label': c.title, class: 'figure'})}));
  const node = el('tr', {role: 'row'}, head, verdict, ...cells.map(c => c.node));
  return {node, show: ({group, host}) => {
    say(name, group.title);
    name.title = group.group;
    name.href = link(group.group);
    say(role, [group.role, group.engine].filter(Boolean).join(', '));
    head.style.setProperty('--depth', group.depth);
    say(verdict, `${mark(group.verdict)} ${group.verdict.text}`);
    node.className = group.verdict.word + (group.verdict.alarm ? ' alarm' : '');
    columns.forEach((c, i) => c.show(cells[i], group, host));
  }};
}

// hull is a bar of the whole host, with a part for each outermost group, what others use, and what is free. The table
// says the same in text.
function hull(title, link) {
  const text = el('span', {class: 'whole'});
  const bar = el('div', {class: 'hull', 'aria-hidden': 'true'});
  const parts = keyed(bar, () => {
    const label = el('span');
    const node = el('a', {tabindex: -1}, label);
    return {node, show: p => {
      node.className = p.kind;
      node.style.flexGrow = Math.max(p.part, 0.0001);
      node.title = `${p.name} ${p.text}`;
      if (p.group) node.href = link(p.group);
      say(label, p.name + ' ' + p.text);
    }};
  });
  return {node: el('section', {class: 'host'}, el('h2', {}, title, ' ', text), bar), show: (words, whole, list) => {
    say(text, words);
    const sum = list.reduce((n, p) => n + p.value, 0);
    parts(list.map(p => ({...p, part: p.value / Math.max(sum, whole)})), p => p.kind + p.name);
  }};
}

// room divides the host among the outermost groups by one figure; used is what all together use, counted as for groups.
function room(groups, name, whole, used, text) {
  const list = groups.filter(g => g.depth === 0 && g.values[name] > 0).map(g => ({kind: 'compartment ' +
    (g.verdict.alarm ? 'alarm' : ''), name: (g.verdict.alarm ? '! ' : '') + g.title, group: g.group,
    value: g.values[name], text: g.shown[name]}));
  const own = list.reduce((n, p) => n + p.value, 0);
  const others = Math.max(used - own, 0), free = Math.max(whole - own - others, 0);
  list.push({kind: 'others', name: 'outside the groups', value: others, text: text(others)},
    {kind: 'free', name: 'free', value: free, text: text(free)});
  return list;
}

// Overview is the view of all groups.
export class Overview {
  constructor(link) {
    this.cpu = hull('CPU', link);
    this.memory = hull('Memory', link);
    this.waits = el('p', {class: 'waits'});
    const body = el('tbody', {role: 'rowgroup'});
    this.rows = keyed(body, item => row(item.group, link));
    this.none = el('p', {hidden: true},
      'No group has figures at this time: no policy is in force, or none of its groups is there.');
    this.count = el('span', {class: 'whole'});
    const look = el('span', {class: 'whole look'});
    this.look = keyed(look, name => ({node: el('a', {href: link(name)}, name), show() {}}));
    this.node = el('div', {class: 'overview'}, el('div', {class: 'hosts'}, this.cpu.node, this.memory.node), this.waits,
      el('h2', {id: 'groups'}, 'Groups ', this.count, ' ', look),
      el('div', {class: 'scroll', tabindex: 0, role: 'region', 'aria-labelledby': 'groups'},
        el('table', {class: 'groups', role: 'table', 'aria-labelledby': 'groups'}, el('thead', {role: 'rowgroup'},
          el('tr', {role: 'row'}, ...['Group', 'State'].map(t => el('th', {scope: 'col', role: 'columnheader'}, t)),
            ...columns.map(c => el('th', {scope: 'col', role: 'columnheader', title: c.help, class: 'figure'},
              c.title)))), body)), this.none);
  }

  show(view) {
    const {host, groups} = view, v = host.values;
    const cpus = v.cpus ?? 0;
    this.cpu.show(`${host.shown.busy ?? '–'} of ${host.shown.cpus ?? '–'} cores busy, load ${host.shown.load ?? '–'}`,
      cpus, room(groups, 'cpu', cpus, (v.busy ?? 0) * cpus, cores));
    this.memory.show(v.memory ? `${host.shown.used} of ${host.shown.memory} not available` : 'not known', v.memory ?? 0,
      room(groups, 'memory', v.memory ?? 0, v.filled ?? v.used ?? 0, size));
    say(this.waits, 'Somewhere on the host a task waits for ' + [['wait_cpu', 'CPU'], ['wait_memory', 'memory'],
      ['wait_disk', 'disks']].map(([k, t]) => `${t} ${host.shown[k] ?? '–'}`).join(', ') + ' of the time.');
    this.rows(groups.map(group => ({group, host})), item => item.group.group);
    const alarms = groups.filter(g => g.verdict.alarm).map(g => g.group);
    say(this.count, alarms.length ? `${groups.length}; look at` : `${groups.length}; nothing to look at`);
    this.look(alarms, name => name);
    this.none.hidden = groups.length > 0;
  }
}

// most lines in one chart.
const most = 8;

const figure = (name, format, least, title, help) => ({title, help, format, least, lines: data => {
  const peak = g => data.groups[g][name].reduce((a, b) => Math.max(a, b ?? 0), 0);
  const all = Object.keys(data.groups).sort();
  const shown = all.filter(g => data.groups[g][name]).sort((a, b) => peak(b) - peak(a)).slice(0, most);
  return all.filter(g => shown.includes(g)).map(g =>
    ({label: g, number: all.indexOf(g), values: data.groups[g][name]}));
}});

const host = {title: 'The host', help: 'part of the time', format: percent, least: 0.05, lines: data =>
  [['busy', 'CPUs busy'], ['wait_cpu', 'a task waits for CPU'], ['wait_memory', 'for memory'], ['wait_disk', 'for disks']]
    .filter(([n]) => data.host[n]).map(([n, label], number) => ({label, number, values: data.host[n]}))};

// charts are those of all groups.
export const charts = [
  host,
  figure('cpu', cores, 0.1, 'CPU', 'cores in use'),
  figure('wait', percent, 0.05, 'Waiting', 'part of the time in which a task waited, for what it waited most'),
  figure('memory', size, 1 << 20, 'Memory', 'charged, page cache too'),
  figure('read', rate, 1 << 20, 'Disk reads', 'bytes in a second'),
  figure('write', rate, 1 << 20, 'Disk writes', 'bytes in a second'),
  figure('work', count, 1, 'Work', 'what databases did in a second, each by its own counter'),
  figure('slack', percent, 0.1, 'Promises',
    'how far databases are from their targets, as a part of these; below 0 one is missed'),
];

// pointOf gives the figures of a sample as the series have them.
export function pointOf(view) {
  return Object.fromEntries(view.groups.filter(g => g.depth === 0).map(g => [g.group,
    Object.fromEntries(['cpu', 'wait', 'memory', 'read', 'write', 'work', 'slack'].filter(n => n in g.values).map(n => [n, g.values[n]]))]));
}
