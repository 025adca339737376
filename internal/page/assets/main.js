// What is shown stands in the address: group=NAME, last=SECONDS for now, or from=, to= and at= (UTC) for the past.

import {$, el, say} from './dom.js';
import {clock, moment, zone} from './format.js';
import {Chart, signOf} from './charts.js';
import {Waiting} from './waiting.js';
import * as overview from './overview.js';
import * as group from './group.js';

const spans = [[300, '5 minutes'], [900, '15 minutes'], [3600, '1 hour'], [6 * 3600, '6 hours'], [24 * 3600, '1 day'],
  [7 * 24 * 3600, '7 days']];
const [usual, least, longest] = [900, 10, 7 * 24 * 3600];

let about, state, shown, data, abort, stream;

// read gives what the address asks for; times are in ms.
function read(search) {
  const q = new URLSearchParams(search);
  const time = name => Date.parse(q.get(name) ?? '') || null;
  const s = {group: q.get('group') ?? '', last: Math.min(Math.max(+q.get('last') || usual, least), longest),
    from: time('from'), to: time('to'), at: time('at')};
  if (s.at && !s.to) [s.from, s.to] = [s.at - 500 * s.last, s.at + 500 * s.last];
  if (!s.to && !about.live && about.reach.to) {
    s.to = Date.parse(about.reach.to) + 1000;
    s.from = Math.max(Date.parse(about.reach.from), s.to - 1000 * (+q.get('last') || 3600));
  }
  s.live = !s.to;
  if (!s.live) {
    s.from = Math.max(s.from ?? 0, s.to - 1000 * longest);
    if (s.from >= s.to) s.from = s.to - 1000 * s.last;
    s.at ??= s.to;
  }
  return s;
}

function write(s) {
  const q = new URLSearchParams();
  if (s.group) q.set('group', s.group);
  if (s.live) {
    if (s.last !== usual) q.set('last', s.last);
  } else {
    for (const name of ['from', 'to', 'at']) q.set(name, new Date(s[name]).toISOString().slice(0, 19) + 'Z');
  }
  return '?' + q.toString();
}

const go = change => {
  history.pushState(null, '', write({...state, ...change}));
  load();
};

// past goes to another time; from and to are kept in what may be asked for.
function past(from, to, at) {
  const middle = (from + to) / 2, span = Math.min(Math.max(to - from, 1000 * least), 1000 * longest);
  [from, to] = [middle - span / 2, middle + span / 2].map(t => Math.round(t / 1000) * 1000);
  const edge = Date.now();
  if (about.live && to > edge) [from, to] = [edge - span, edge];
  go({live: false, from, to, at: Math.min(Math.max(at ?? to, from), to)});
}

const range = () => state.live ? [Date.now() - 1000 * state.last, Date.now()] : [state.from, state.to];

async function ask(path, signal) {
  const answer = await fetch('api/' + path, {signal});
  const value = await answer.json();
  if (!answer.ok) throw Object.assign(new Error(value.error), {hint: value.hint});
  return value;
}

function trouble(error) {
  $('trouble').hidden = !error;
  say($('trouble'), error ? '! ' + [error.message ?? error.error, error.hint].filter(Boolean).join(' — ') : '');
}

// load shows what the address asks for.
async function load() {
  abort?.abort();
  stream?.close();
  stream = null;
  abort = new AbortController();
  const {signal} = abort, before = state;
  state = read(location.search);
  if (!shown || before.group !== state.group) build();
  controls();
  document.body.classList.add('loading');
  const [from, to] = range().map(Math.round), of = `&group=${encodeURIComponent(state.group)}`;
  try {
    const wanted = [ask(`series?from=${from}&to=${to}${of}`, signal)];
    if (!state.live) wanted.push(ask(`at?at=${state.at}${of}`, signal));
    const [series, view] = await Promise.allSettled(wanted);
    if (signal.aborted) return;
    const wrong = [series, view].find(r => r?.status === 'rejected');
    trouble(wrong?.reason ?? (series.value.damaged ? new Error('A part of the record is damaged and left out.') : null));
    data = series.value ?? {times: [], host: {}, groups: {}, changes: []};
    shown.waiting.show(data.waiting);
    if (view?.value) show(view.value);
    else if (!state.live) say($('time'), '');
    draw();
  } finally {
    if (!signal.aborted) document.body.classList.remove('loading');
  }
  if (state.live && !signal.aborted && !document.hidden) follow();
}

// build makes the view of all groups, or of one.
function build() {
  shown?.charts.forEach(c => c.destroy());
  const kind = state.group ? group : overview;
  const view = state.group ? new group.Group(state.group, link, about.columns) : new overview.Overview(link);
  const asked = {range: (a, b) => past(a, b), moment: at => past(...range(), Math.round(at / 1000) * 1000)};
  const charts = kind.charts.map(c => Object.assign(new Chart(c.title, c.help, c.format, c.least, asked), {of: c.lines}));
  const changes = el('ul', {class: 'changes'}), waiting = new Waiting();
  shown = {view, charts, changes, kind, waiting};
  $('main').replaceChildren(view.node, el('h2', {}, 'Over time'),
    el('p', {class: 'help'},
      'Drag over a chart to see that time; click for one moment. On a keyboard: arrow keys, then Enter.'),
    el('div', {class: 'charts'}, ...charts.map(c => c.node)), ...state.group ? [waiting.node] : [],
    el('h2', {}, 'What happened'), changes);
  document.title = (state.group ? state.group + ' · ' : '') + about.of + ' · bulkhead';
}

const link = name => write({...state, group: name});

// follow shows each sample as it comes.
function follow() {
  stream = new EventSource(`api/live?group=${encodeURIComponent(state.group)}`);
  stream.addEventListener('sample', e => {
    const view = JSON.parse(e.data);
    trouble(null);
    document.body.classList.remove('old');
    say($('mode'), 'Live');
    show(view);
    add(view);
  });
  const old = error => {
    trouble(error);
    document.body.classList.add('old');
    say($('mode'), 'Old figures');
  };
  stream.addEventListener('trouble', e => old(JSON.parse(e.data)));
  const mine = stream;
  stream.addEventListener('error', () => {
    old(new Error('The page gets no figures: bulkhead serve does not answer, or too many watch. It tries again.'));
    if (mine.readyState === EventSource.CLOSED) setTimeout(() => mine === stream && load(), 10000); // it was refused
  });
}

function show(view) {
  const at = Date.parse(view.at);
  say($('time'), moment(at));
  $('time').dateTime = view.at;
  shown.view.show(view);
}

// add appends a sample to the charts, and drops what is too old.
function add(view) {
  const at = Date.parse(view.at), columns = () => [data.host, ...Object.values(data.groups)].flatMap(Object.values);
  if (at === data.times.at(-1)) return;
  data.known ??= data.times.at(-1) ?? 0; // up to then the record has told what happened
  const told = new Set(data.changes.map(c => JSON.stringify(c)));
  data.changes.push(...(view.changes ?? []).filter(c => Date.parse(c.at) > data.known && !told.has(JSON.stringify(c))));
  const n = data.times.filter(t => t < at).length; // more there are when the clock was set back
  [data.times, ...columns()].forEach(column => column.splice(n));
  data.times.push(at);
  const append = (of, figures) => {
    for (const name of new Set([...Object.keys(figures), ...Object.keys(of)])) {
      (of[name] ??= Array(n).fill(null)).push(figures[name] ?? null);
    }
  };
  const point = shown.kind.pointOf(view, state.group);
  append(data.host, view.host.values);
  for (const name of new Set([...Object.keys(point), ...Object.keys(data.groups)])) {
    append(data.groups[name] ??= {}, point[name] ?? {});
  }
  const first = data.times.findIndex(t => t >= at - 1000 * state.last);
  if (first > 0) {
    [data.times, ...columns()].forEach(column => column.splice(0, first));
  }
  draw();
}

function draw() {
  const times = data.times.map(t => t / 1000);
  for (const c of shown.charts) {
    c.range = range().map(t => t / 1000);
    c.show(times, c.of(data, state.group), data.changes, state.live ? null : state.at);
  }
  const texts = data.changes.slice().reverse().map(c =>
    [c.at, `${signOf(c)}  ${moment(Date.parse(c.at))}  ${c.group && !state.group ? c.group + ': ' : ''}${c.text}`]);
  if (data.more) texts.push(['', `and ${data.more} more: choose a shorter time`]);
  if (!texts.length) {
    texts.push(['', 'Nothing that the record tells: no policy, limit or agent changed, nothing was killed.']);
  }
  const all = texts.map(t => t[1]).join('\n');
  if (shown.changes.dataset.all === all) return;
  shown.changes.dataset.all = all;
  shown.changes.replaceChildren(...texts.map(([at, text]) => el('li', {}, at ? el('button', {type: 'button',
    class: 'plain', onclick: () => past(...range(), Date.parse(at))}, text) : text)));
}

// controls shows which time is shown, and what can be asked for.
function controls() {
  const [from, to] = range(), seconds = Math.round((to - from) / 1000);
  document.body.classList.remove('old');
  say($('mode'), state.live ? 'Reading' : 'Recorded'); // it is Live when the first sample comes
  document.body.classList.toggle('past', !state.live);
  $('live').hidden = state.live || !about.live;
  const known = spans.find(([s]) => s === seconds);
  $('span').replaceChildren(...spans.map(([s, text]) => el('option', {value: s}, text)),
    ...known ? [] : [el('option', {value: seconds}, `${clock(from)} to ${clock(to)}`)]);
  $('span').value = seconds;
  const at = state.live ? Date.now() : state.at;
  $('moment').value = new Date(at - 60000 * new Date(at).getTimezoneOffset()).toISOString().slice(0, 19);
  $('later').disabled = state.live;
  $('home').href = link('');
}

function wire() {
  const move = by => {
    const [from, to] = range(), step = by * (to - from) / 2;
    past(from + step, to + step, state.live ? undefined : state.at + step);
  };
  const zoom = by => {
    const [from, to] = range(), at = state.live ? to : state.at, span = by * (to - from);
    past(at - span / 2, at + span / 2, at);
  };
  $('earlier').onclick = () => move(-1);
  $('later').onclick = () => move(1);
  $('closer').onclick = () => zoom(1 / 3);
  $('wider').onclick = () => zoom(3);
  $('live').onclick = () => go({live: true});
  $('span').onchange = () => {
    const last = +$('span').value;
    if (state.live) go({last});
    else past(state.at - 500 * last, state.at + 500 * last, state.at);
  };
  $('goto').onsubmit = e => {
    e.preventDefault();
    const at = Date.parse($('moment').value), [from, to] = range();
    if (at) past(at - (to - from) / 2, at + (to - from) / 2, at);
  };
  document.addEventListener('click', e => {
    const a = e.target.closest('a[href^="?"]');
    if (!a || e.ctrlKey || e.metaKey || e.shiftKey || e.button) return;
    e.preventDefault();
    history.pushState(null, '', a.getAttribute('href'));
    load().then(() => $('main').focus({preventScroll: true}));
    scrollTo(0, 0);
  });
  addEventListener('popstate', load);
  document.addEventListener('visibilitychange', () => {
    if (!state.live) return;
    if (!document.hidden) load(); // what came meanwhile is in the record
    else stream?.close();
  });
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => shown.charts.forEach(c => c.repaint()));
}

async function begin() {
  try {
    about = await ask('about');
  } catch (error) {
    trouble(error);
    return;
  }
  say($('of'), about.of);
  const mine = -60 * new Date().getTimezoneOffset();
  say($('zone'), zone() + (mine === about.offset_s ? '' : `, the host's clock is at ${zone(about.offset_s)}`));
  const r = about.reach;
  say($('reach'), about.trouble ? 'What was recorded cannot be read: ' + [about.trouble.error, about.trouble.hint]
    .filter(Boolean).join(' — ') : r.ticks ? `Recorded from ${moment(Date.parse(r.from))} to ${moment(Date.parse(r.to))}` +
    (r.gaps?.length ? `, with ${r.gaps.length} gaps.` : '.') : 'Nothing is recorded.');
  $('metrics').parentNode.hidden = !about.live;
  wire();
  await load();
}

begin();
