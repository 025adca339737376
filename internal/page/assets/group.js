// One group: is it held, what holds it, who else wants the same.

import {el, mark, say} from './dom.js';
import {cores, count, percent, rate, size} from './format.js';
import {Nodes} from './nodes.js';

const cell = (role, text, ...more) => el('td', {role, ...more[0]}, text);

// list fills a list with texts.
function list(e, texts) {
  if (e.textContent !== texts.join('')) e.replaceChildren(...texts.map(t => el('li', {}, t)));
}

// Group is the view of one group.
export class Group {
  constructor(name, link, columns) {
    this.name = name;
    this.columns = columns;
    const above = name.split('/').slice(0, -1).map((part, i, all) =>
      [el('a', {href: link(all.slice(0, i + 1).join('/'))}, part), ' / ']).flat();
    this.role = el('small');
    this.verdict = el('p', {class: 'answer'});
    this.waits = el('ul');
    this.holds = el('ul');
    this.commands = el('div');
    this.wants = el('ul');
    this.limits = el('tbody', {role: 'rowgroup'});
    this.figures = el('dl');
    this.nodes = new Nodes();
    const box = (title, ...inner) => el('section', {class: 'box'}, el('h3', {}, title), ...inner);
    this.gone = el('p', {hidden: true, class: 'answer'}, 'The group has no figures at this time.');
    this.there = el('div', {},
      el('div', {class: 'answers'},
        box('Is it held?', this.verdict, this.waits), box('What holds it', this.holds, this.commands),
        box('Who else wants it', this.wants)),
      el('h3', {id: 'limits'}, 'Limits, those that bite first'),
      el('div', {class: 'scroll', tabindex: 0, role: 'region', 'aria-labelledby': 'limits'},
        el('table', {role: 'table', 'aria-labelledby': 'limits'}, el('thead', {role: 'rowgroup'}, el('tr', {role: 'row'},
          ...['Limit', 'Asked', 'Held', 'Used', 'State'].map(t => el('th', {role: 'columnheader', scope: 'col',
            class: t === 'Limit' || t === 'State' ? undefined : 'figure'}, t)))), this.limits)),
      el('h3', {}, 'Figures'), this.figures, this.nodes.node);
    this.node = el('div', {class: 'group'}, el('p', {}, el('a', {href: link('')}, '← All groups')),
      el('h2', {}, ...above, name.split('/').at(-1), ' ', this.role), this.gone, this.there);
  }

  show(view) {
    const g = view.groups.find(g => g.group === this.name), d = view.group;
    this.gone.hidden = !!g && !!d;
    this.there.hidden = !this.gone.hidden;
    if (!this.there.hidden) this.fill(g, d);
  }

  fill(g, d) {
    say(this.role, [g.role, g.engine].filter(Boolean).join(', '));
    say(this.verdict, `${mark(g.verdict)} ${g.verdict.text}`);
    this.verdict.className = 'answer ' + g.verdict.word + (g.verdict.alarm ? ' alarm' : '');
    const about = what => d.reasons.filter(r => r.about === what).map(r => r.text);
    list(this.waits, about('waits'));
    const or = (lines, text) => lines.length ? lines : [text];
    list(this.holds, or(about('holds'), 'No limit that is counted holds it back now.'));
    list(this.wants, or(about('wants'), 'It waits for nothing that others use.'));
    const commands = d.holders.map(h => h.command).filter(Boolean);
    if (this.commands.dataset.all !== commands.join('\n')) {
      this.commands.dataset.all = commands.join('\n');
      this.commands.replaceChildren(...commands.map(c => el('p', {}, 'Half as much again for an hour:',
        el('code', {tabindex: 0, class: 'command'}, c))));
    }
    this.limits.replaceChildren(...d.limits.map(l => el('tr', {role: 'row', class: l.bites ? 'bites' : undefined},
      el('th', {scope: 'row', role: 'rowheader'}, l.key + (l.device ? ' on ' + l.device : '')),
      cell('cell', l.asked, {class: 'figure', 'data-label': 'Asked'}),
      cell('cell', l.held, {class: 'figure', 'data-label': 'Held'}),
      cell('cell', l.used, {class: 'figure', 'data-label': 'Used'}),
      cell('cell', l.bites ? '■ bites: ' + l.how : l.differs ? '≠ not as asked' : '', {'data-label': 'State'}))));
    if (!d.limits.length) {
      this.limits.replaceChildren(el('tr', {role: 'row'}, cell('cell', 'It has no limit of its own.', {colspan: 5})));
    }
    this.figures.replaceChildren(...this.columns.filter(c => c.name in g.shown).map(c =>
      el('div', {}, el('dt', {}, c.help), el('dd', {}, g.shown[c.name]))));
    this.nodes.show(d.nodes);
  }
}

// chart takes figures of the group by name, and those of its limits that begin with may.
const chart = (title, help, format, least, names, may = []) => ({title, help, format, least, lines: (data, group) => {
  const of = data.groups[group] ?? {};
  const lines = Object.entries(names).filter(([n]) => of[n]).map(([n, label], number) => ({label, number, values: of[n]}));
  const limits = Object.keys(of).filter(n => may.some(m => n === 'may ' + m || n.startsWith(`may ${m} on `))).sort();
  return lines.length ? [...lines, ...limits.map((n, i) => ({label: n.replace('may ', 'limit '), limit: true,
    number: lines.length + i, values: of[n]}))] : [];
}});

// charts are those of one group.
export const charts = [
  chart('CPU', 'cores', cores, 0.1, {cpu: 'in use'}, ['cpu.limit']),
  chart('Waiting', 'part of the time in which a task of it waited', percent, 0.05,
    {wait_cpu: 'for CPU', wait_memory: 'for memory', wait_disk: 'for disks'}),
  chart('Held back', 'part of the periods of its CPU limit', percent, 0.05, {held: 'held'}),
  chart('Memory', 'charged, page cache too', size, 1 << 20, {memory: 'charged'}, ['memory.max', 'memory.high']),
  chart('Disks', 'bytes in a second', rate, 1 << 20, {read: 'read', write: 'written'},
    ['io.read.bandwidth', 'io.write.bandwidth']),
  chart('Disk requests', 'in a second', count, 10, {ops: 'requests'}, ['io.read.iops', 'io.write.iops']),
  chart('Network', 'bytes in a second', rate, 1 << 20, {net: 'sent and received'},
    ['network.egress.max', 'network.ingress.max']),
  chart('Work', 'what its database did in a second, by its own counter', count, 1, {work: 'done'}),
  chart('Promise', 'how far its database is from its target, as a part of it; below 0 it is missed', percent, 0.1,
    {slack: 'slack'}),
  chart('Threads', 'how many', count, 10, {tasks: 'all', run: 'run or could', blocked: 'blocked'}, ['tasks']),
];

// pointOf gives the figures of a sample as the series have them.
export function pointOf(view, group) {
  const g = view.groups.find(g => g.group === group);
  if (!g || !view.group) return {};
  const limits = view.group.limits.filter(l => l.measured).map(l =>
    ['may ' + l.key + (l.device ? ' on ' + l.device : ''), l.value]);
  return {[group]: {...g.values, ...view.group.waits.values, ...Object.fromEntries(limits)}};
}
