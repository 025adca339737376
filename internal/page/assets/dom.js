// Elements. What comes from the host gets into the page as text, never as HTML.

export const $ = id => document.getElementById(id);

// el makes an element: el('a', {href: '?'}, 'text', other). A property that begins with on is a listener.
export function el(name, properties = {}, ...children) {
  const e = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key.startsWith('on')) e.addEventListener(key.slice(2), value);
    else if (value !== undefined && value !== false) e.setAttribute(key, value === true ? '' : value);
  }
  e.append(...children.filter(c => c !== undefined && c !== null));
  return e;
}

// say sets a text only where it is another one, so that nothing moves or is read out again.
export function say(e, text) {
  if (e.textContent !== text) e.textContent = text;
}

// keyed keeps one child for each item, by its key: who has the focus keeps it. make gives {node, show}.
export function keyed(parent, make) {
  const kept = new Map();
  return (items, keyOf) => {
    const seen = new Set();
    items.forEach((item, i) => {
      const key = keyOf(item);
      seen.add(key);
      if (!kept.has(key)) kept.set(key, make(item));
      const k = kept.get(key);
      k.show(item);
      if (parent.children[i] !== k.node) parent.insertBefore(k.node, parent.children[i] ?? null);
    });
    for (const [key, k] of kept) {
      if (!seen.has(key)) {
        k.node.remove();
        kept.delete(key);
      }
    }
  };
}

// mark is the sign before a state, which says the same as its colour.
export const mark = verdict => ({killed: '✕', held: '■', waits: '◔', wrong: '≠', free: '✓'})[verdict.word] ?? '';
