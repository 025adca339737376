// Charts over time: one canvas each by uPlot, with a key in text and all that a mouse does on a keyboard, too.

import {el, say} from './dom.js';
import {clock, day, moment} from './format.js';

const dashes = [[], [7, 4], [2, 3], [10, 3, 2, 3]];
const colours = 8;
const powers = Array.from({length: 60}, (_, n) => 2 ** n); // steps of bytes
const signs = {apply: 'A', agent: 'S', guard: 'G', window: 'W', killed: 'K', override: 'O', limit: 'L', wrong: 'N',
  slo: 'P'};

export const signOf = change => signs[change.kind] ?? '?';

const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// A line's colour and dash go by its number: lines of one colour have different dashes.
const colourOf = n => css('--line-' + n % colours);
const dashOf = (n, limit) => limit ? [1, 3] : dashes[(n + Math.floor(n / colours)) % dashes.length];

// Chart shows lines [{label, number, limit, values}] over times in seconds. format makes text of a value, least is the
// smallest height, and asked says {range(from, to), moment(at)} when somebody wants another time, all in ms.
export class Chart {
  constructor(title, help, format, least, asked) {
    Object.assign(this, {title, format, least, asked, lines: [], times: [], changes: [], at: null, index: null});
    this.key = el('ul', {class: 'key'});
    this.plot = el('div', {class: 'plot', tabindex: 0, role: 'slider', 'aria-label': title + ': time'});
    this.when = el('span', {class: 'when'});
    this.node = el('figure', {}, el('figcaption', {}, el('h3', {}, title), el('span', {class: 'help'}, help), this.when),
      this.plot, this.key);
    this.plot.addEventListener('keydown', e => this.press(e));
    this.plot.addEventListener('blur', () => this.point(null));
    this.watcher = new ResizeObserver(() => this.fit());
    this.watcher.observe(this.plot);
  }

  // show takes the lines anew; the canvas is made again only when other lines are shown.
  show(times, lines, changes, at) {
    const same = this.u && lines.length === this.lines.length && lines.every((l, i) => l.label === this.lines[i].label);
    Object.assign(this, {times, lines, changes, at});
    this.node.hidden = !lines.length;
    if (!lines.length) return;
    const data = [times, ...lines.map(l => l.values)];
    if (same) this.u.setData(data);
    else this.build(data);
    this.read();
  }

  build(data) {
    this.u?.destroy();
    const text = css('--faint'), grid = css('--grid');
    const axis = {stroke: text, grid: {stroke: grid, width: 1}, ticks: {stroke: grid}, font: '12px system-ui, sans-serif'};
    this.u = new uPlot({
      ...this.measure(),
      padding: [8, 8, 0, 0],
      legend: {show: false},
      cursor: {sync: {key: 'time'}, y: false, drag: {setScale: false, x: true, y: false}, points: {size: 6}},
      scales: {x: {time: true, range: (u, from, to) => this.range ?? [from, to]},
        y: {range: (u, min, max) => [Math.min((min ?? 0) * 1.05, 0), Math.max(this.least, (max ?? 0) * 1.05)]}},
      axes: [
        {...axis, size: 30, space: 70, values: (u, splits, i, space, step) => splits.map((s, n) => step >= 86400 ||
          n > 0 && day(1000 * s) !== day(1000 * splits[n - 1]) ? day(1000 * s).slice(5) : clock(1000 * s, step < 60))},
        {...axis, size: 62, space: 28, ...this.least >= 1024 ? {incrs: powers} : {},
          values: (u, splits) => splits.map(this.format)}],
      series: [{}, ...this.lines.map(l => ({label: l.label, width: l.limit ? 2 : 1.5, stroke: () => colourOf(l.number),
        dash: dashOf(l.number, l.limit), points: {show: (u, s, a, b) => b - a < 2}}))],
      hooks: {draw: [u => this.draw(u)], setCursor: [u => this.follow(u)], setSelect: [u => this.select(u)]},
    }, data, this.plot);
    this.u.over.addEventListener('click', () => {
      if (!this.dragged && this.u.cursor.left >= 0) this.asked.moment(1000 * this.u.posToVal(this.u.cursor.left, 'x'));
      this.dragged = false;
    });
    this.key.replaceChildren(...this.lines.map(l => {
      const value = el('b');
      l.out = value;
      const svg = document.createElementNS('http://www.w3.org/2000/svg', 'svg');
      svg.setAttribute('viewBox', '0 0 26 8');
      svg.setAttribute('aria-hidden', 'true');
      const line = document.createElementNS('http://www.w3.org/2000/svg', 'path');
      line.setAttribute('d', 'M0 4H26');
      line.setAttribute('class', 'line-' + l.number % colours);
      line.setAttribute('stroke-dasharray', dashOf(l.number, l.limit).join(' '));
      svg.append(line);
      return el('li', {}, svg, l.label + ' ', value);
    }));
    this.outs = [...this.key.querySelectorAll('b')];
  }

  measure() { return {width: Math.max(this.plot.clientWidth, 160), height: 170}; }

  fit() {
    if (this.u && this.plot.clientWidth && this.u.width !== this.measure().width) this.u.setSize(this.measure());
  }

  // repaint is for when colours are others.
  repaint() {
    if (this.lines.length) this.build([this.times, ...this.lines.map(l => l.values)]);
    this.read();
  }

  // draw marks the moment that is shown, and what happened.
  draw(u) {
    const c = u.ctx, {left, top, width, height} = u.bbox, r = devicePixelRatio;
    const line = (ms, colour, dash) => {
      const x = Math.round(u.valToPos(ms / 1000, 'x', true));
      if (x < left || x > left + width) return null;
      c.strokeStyle = colour;
      c.setLineDash(dash);
      c.beginPath();
      c.moveTo(x, top);
      c.lineTo(x, top + height);
      c.stroke();
      return x;
    };
    c.save();
    c.lineWidth = r;
    c.textAlign = 'center';
    c.font = `bold ${10 * r}px system-ui, sans-serif`;
    let last = -Infinity, shown = '';
    for (const change of this.changes) {
      const x = line(Date.parse(change.at), css('--mark'), [2 * r, 3 * r]), sign = signOf(change);
      if (x === null) continue;
      if (x - last > 12 * r) [last, shown] = [x, ''];
      if (shown.includes(sign) || shown.length > 3) continue; // letters that are too close stand below each other
      c.fillStyle = css('--mark');
      c.fillText(sign, x, top + (9 + 11 * shown.length) * r);
      shown += sign;
    }
    c.lineWidth = 2 * r;
    if (this.at) line(this.at, css('--text'), []);
    c.restore();
  }

  follow(u) {
    this.point(u.cursor.idx ?? null, true);
  }

  select(u) {
    if (u.select.width < 8) return;
    const from = u.posToVal(u.select.left, 'x'), to = u.posToVal(u.select.left + u.select.width, 'x');
    this.dragged = true;
    u.setSelect({left: 0, top: 0, width: 0, height: 0}, false);
    this.asked.range(1000 * from, 1000 * to);
  }

  // point shows the values at a place, those at its end for null.
  point(index, fromPlot = false) {
    this.index = index;
    if (!fromPlot && this.u) {
      if (index === null) this.u.setCursor({left: -10, top: -10});
      else this.u.setCursor({left: this.u.valToPos(this.times[index], 'x'), top: 10});
    }
    this.read();
  }

  // read writes the values into the key.
  read() {
    const n = this.times.length;
    if (!n || !this.outs) return;
    let i = Math.min(this.index ?? n - 1, n - 1);
    if (this.index === null) {
      const until = this.at ? this.at / 1000 + 0.5 : Infinity;
      while (i > 0 && (this.times[i] > until || this.lines.every(l => l.values[i] == null))) i--;
    }
    const texts = this.lines.map(l => l.values[i] == null ? '–' : this.format(l.values[i]));
    texts.forEach((text, k) => say(this.outs[k], text));
    say(this.when, clock(1000 * this.times[i]));
    for (const [name, value] of Object.entries({min: 0, max: n - 1, now: i, text: moment(1000 * this.times[i]) + ': ' +
      this.lines.map((l, k) => l.label + ' ' + texts[k]).join(', ')})) {
      this.plot.setAttribute('aria-value' + name, value);
    }
  }

  press(e) {
    const n = this.times.length, i = this.index ?? n - 1;
    const to = {ArrowLeft: i - 1, ArrowRight: i + 1, ArrowDown: i - 1, ArrowUp: i + 1, PageDown: i - 10, PageUp: i + 10,
      Home: 0, End: n - 1}[e.key];
    if (to !== undefined && n) this.point(Math.min(Math.max(to, 0), n - 1));
    else if (e.key === 'Enter' && this.index !== null) this.asked.moment(1000 * this.times[this.index]);
    else if (e.key === 'Escape') this.point(null);
    else return;
    e.preventDefault();
  }

  destroy() {
    this.watcher.disconnect();
    this.u?.destroy();
  }
}
