// Text of numbers and times, as `bulkhead top` writes them.

export function size(v) {
  for (const [letter, bytes] of [['T', 2 ** 40], ['G', 2 ** 30], ['M', 2 ** 20], ['K', 2 ** 10]]) {
    if (v >= 0.9995 * bytes) return (v / bytes).toFixed(v >= 99.95 * bytes ? 0 : 1) + letter;
  }
  return v.toFixed(0);
}

export const rate = v => size(v) + '/s';
export const cores = v => v >= 99.95 ? v.toFixed(1) : v.toFixed(2);

export function percent(v) {
  v *= 100;
  return v >= 9.95 ? v.toFixed(0) + '%' : v.toFixed(1).replace(/\.0$/, '') + '%';
}

export const count = v => v >= 99950 ? (v / 1e3).toFixed(0) + 'k' : v.toFixed(v < 10 && v % 1 ? 1 : 0);

// took is a time in seconds with the unit that fits.
export const took = s => s >= 1 ? +s.toPrecision(3) + ' s' : s >= 1e-3 ? +(1e3 * s).toPrecision(3) + ' ms' :
  +(1e6 * s).toPrecision(3) + ' µs';

const two = n => String(n).padStart(2, '0');

export const day = ms => {
  const d = new Date(ms);
  return `${d.getFullYear()}-${two(d.getMonth() + 1)}-${two(d.getDate())}`;
};

export const clock = (ms, seconds = true) => {
  const d = new Date(ms);
  return two(d.getHours()) + ':' + two(d.getMinutes()) + (seconds ? ':' + two(d.getSeconds()) : '');
};

export const moment = ms => day(ms) + ' ' + clock(ms);

// zone is the browser's offset from UTC, in which all times are shown.
export function zone(seconds = -60 * new Date().getTimezoneOffset()) {
  if (seconds === 0) return 'UTC';
  const m = Math.abs(seconds) / 60;
  return `UTC${seconds < 0 ? '−' : '+'}${Math.floor(m / 60)}${m % 60 ? ':' + two(m % 60) : ''}`;
}
