// The grid of nodes and ranks, on a canvas: a cell that has changed is one small copy of a mark.
import {STATES} from './model.js';

const LABELLED_NODES_MAX = 64;
const LINE_RANKS_MAX = 8;
const LABEL = 132;
const RATIO_MAX = 2; // a thousand nodes on a phone's screen are large enough

/** Draws one mark of `size` at 0, 0. */
export function drawMark(context, mark, colour, size) {
  const pen = Math.max(1.25, size / 8);
  const box = (inset) => context.fillRect(inset, inset, size - 2 * inset, size - 2 * inset);
  context.fillStyle = colour;
  context.strokeStyle = colour;
  context.lineWidth = pen;
  const frame = () => context.strokeRect(pen / 2, pen / 2, size - pen, size - pen);
  const line = (...points) => {
    context.beginPath();
    points.forEach(([x, y], index) => (index % 2 === 0 ? context.moveTo(x, y) : context.lineTo(x, y)));
    context.stroke();
  };
  const inset = size * 0.26;
  switch (mark) {
    case 'full': box(0); break;
    case 'hole': box(0); context.clearRect(size * 0.34, size * 0.34, size * 0.32, size * 0.32); break;
    case 'half': frame(); context.fillRect(0, size / 2, size, size / 2); break;
    case 'dash': frame(); context.fillRect(inset, size * 0.4, size - 2 * inset, size * 0.2); break;
    case 'dot': frame(); box(size * 0.33); break;
    case 'empty': frame(); break;
    case 'slash': frame(); line([inset, size - inset], [size - inset, inset]); break;
    case 'bars': frame(); context.fillRect(size * 0.28, inset, size * 0.15, size - 2 * inset);
      context.fillRect(size * 0.57, inset, size * 0.15, size - 2 * inset); break;
    case 'cross': context.lineWidth = pen * 1.5; frame();
      line([inset, inset], [size - inset, size - inset], [inset, size - inset], [size - inset, inset]); break;
  }
}

const colourOf = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** A small canvas with one mark, for a legend. */
export function markCanvas(state) {
  const canvas = document.createElement('canvas');
  const ratio = Math.min(RATIO_MAX, devicePixelRatio || 1);
  canvas.width = canvas.height = 14 * ratio;
  canvas.className = 'mark';
  canvas.setAttribute('aria-hidden', 'true');
  const context = canvas.getContext('2d');
  context.scale(ratio, ratio);
  drawMark(context, state.mark, colourOf(`--${state.id}`), 14);
  return canvas;
}

export class Grid {
  /** `points(cell)`: the cursor is on it, or null; `opens(cell)`: it was chosen. */
  constructor(canvas, {points, opens}) {
    this.canvas = canvas;
    this.context = canvas.getContext('2d');
    Object.assign(this, {points, opens});
    this.cells = [];
    this.shown = [];
    this.shape = '';
    this.cursor = -1;
    this.slowest = null;
    canvas.addEventListener('keydown', (event) => this.press(event));
    canvas.addEventListener('pointermove', (event) => this.hover(event));
    canvas.addEventListener('pointerleave', () => this.hovered(-1));
    canvas.addEventListener('focus', () => this.move(Math.max(0, this.cursor)));
    canvas.addEventListener('blur', () => this.redraw());
    canvas.addEventListener('click', (event) => {
      const index = this.indexAt(event);
      if (index >= 0) {
        this.move(index);
        this.opens(this.cells[index]);
      }
    });
    new ResizeObserver(() => this.layOut()).observe(canvas.parentElement);
  }

  /** New states; only what has changed is drawn. */
  show(cells, slowest) {
    this.cells = cells;
    const shape = cells.map((cell) => (cell.local === 0 ? `${cell.node.node}` : '')).join('/');
    const wasSlowest = this.slowest;
    this.slowest = slowest;
    if (shape !== this.shape) {
      this.shape = shape;
      this.layOut();
      return;
    }
    for (let index = 0; index < cells.length; index += 1) {
      const isMarked = cells[index].rank !== null && cells[index].rank === slowest;
      const wasMarked = cells[index].rank !== null && cells[index].rank === wasSlowest;
      if (this.shown[index] !== cells[index].state || isMarked !== wasMarked) this.draw(index);
    }
  }

  /** Where every cell is, and everything drawn anew. */
  layOut() {
    const width = this.canvas.parentElement.clientWidth;
    const {cells} = this;
    if (width === 0 || cells.length === 0) {
      this.canvas.style.height = '0';
      return;
    }
    const starts = cells.map((cell, index) => (cell.local === 0 ? index : -1)).filter((index) => index >= 0);
    const slots = Math.max(...starts.map((start, node) => (starts[node + 1] ?? cells.length) - start));
    this.isLabelled = starts.length <= LABELLED_NODES_MAX;
    this.size = this.isLabelled ? 16 : 9;
    this.step = this.size + (this.isLabelled ? 4 : 2);
    const columns = Math.min(slots, LINE_RANKS_MAX);
    const lines = Math.ceil(slots / LINE_RANKS_MAX);
    const label = this.isLabelled ? LABEL : 0;
    const block = label + columns * this.step + (this.isLabelled ? 20 : 6);
    const across = Math.max(1, Math.floor((width + 6) / block));
    const blockHeight = lines * this.step + (this.isLabelled ? 6 : 3);
    this.x = new Float32Array(cells.length);
    this.y = new Float32Array(cells.length);
    this.labels = [];
    starts.forEach((start, node) => {
      const left = (node % across) * block;
      const top = 3 + Math.floor(node / across) * blockHeight;
      if (this.isLabelled) this.labels.push([left + 3, top, cells[start].node]);
      for (let index = start; index < (starts[node + 1] ?? cells.length); index += 1) {
        const local = index - start;
        this.x[index] = 3 + left + label + (local % columns) * this.step;
        this.y[index] = top + Math.floor(local / columns) * this.step;
      }
    });
    const height = 6 + Math.ceil(starts.length / across) * blockHeight;
    this.ratio = Math.min(RATIO_MAX, devicePixelRatio || 1);
    this.canvas.width = width * this.ratio;
    this.canvas.height = height * this.ratio;
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${height}px`;
    this.redraw();
  }

  /** Each mark once, at the size of a cell. */
  prepareMarks() {
    this.ink = colourOf('--ink');
    this.paper = colourOf('--paper');
    this.marks = STATES.map((state) => {
      const pixels = Math.ceil(this.size * this.ratio);
      const canvas = new OffscreenCanvas(pixels, pixels);
      const context = canvas.getContext('2d');
      context.scale(this.ratio, this.ratio);
      drawMark(context, state.mark, colourOf(`--${state.id}`), this.size);
      return canvas.transferToImageBitmap();
    });
  }

  redraw() {
    if (this.cells.length === 0 || !this.x) return;
    this.prepareMarks();
    const {context} = this;
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    context.fillStyle = this.paper;
    context.fillRect(0, 0, this.canvas.width, this.canvas.height);
    context.fillStyle = this.ink;
    context.font = '13px system-ui, sans-serif';
    context.textBaseline = 'middle';
    for (const [x, y, node] of this.labels) {
      context.fillText(fitting(context, node.hostname || node.node, LABEL - 12), x, y + this.size / 2 + 1);
    }
    for (let index = 0; index < this.cells.length; index += 1) this.draw(index);
  }

  draw(index) {
    const {context, size} = this;
    const cell = this.cells[index];
    const x = this.x[index];
    const y = this.y[index];
    context.fillStyle = this.paper;
    context.fillRect(x - 2, y - 2, size + 4, size + 4);
    context.drawImage(this.marks[cell.state], x, y, size, size);
    this.shown[index] = cell.state;
    const isCursor = index === this.cursor && document.activeElement === this.canvas;
    if (isCursor || (cell.rank !== null && cell.rank === this.slowest)) {
      context.strokeStyle = isCursor ? colourOf('--focus') : this.ink;
      context.lineWidth = isCursor ? 2 : 1.5;
      context.strokeRect(x - 1.25, y - 1.25, size + 2.5, size + 2.5);
    }
  }

  indexAt(event) {
    const bounds = this.canvas.getBoundingClientRect();
    const [left, top] = [event.clientX - bounds.left, event.clientY - bounds.top];
    return this.cells.findIndex((_, index) => left >= this.x[index] - 1 && left < this.x[index] + this.step &&
      top >= this.y[index] - 1 && top < this.y[index] + this.step);
  }

  hover(event) {
    this.hovered(this.indexAt(event));
  }

  hovered(index) {
    this.canvas.style.cursor = index >= 0 ? 'pointer' : '';
    this.points(this.cells[index >= 0 ? index : this.cursor] ?? null);
  }

  move(index) {
    if (index < 0 || index >= this.cells.length || !this.x) return;
    const before = this.cursor;
    this.cursor = index;
    if (before >= 0 && before < this.cells.length) this.draw(before);
    this.draw(index);
    const scroll = this.canvas.parentElement;
    if (this.y[index] < scroll.scrollTop) scroll.scrollTop = this.y[index] - 4;
    const end = this.y[index] + this.step - scroll.clientHeight;
    if (end > scroll.scrollTop) scroll.scrollTop = end + 4;
    this.points(this.cells[index]);
  }

  moveToRank(rank) {
    const index = this.cells.findIndex((cell) => cell.rank === rank);
    this.move(index);
    return this.cells[index];
  }

  /** The nearest cell of the next line in a direction. */
  lineFrom(index, direction) {
    let best = index;
    let line;
    for (let next = index + direction; next >= 0 && next < this.cells.length; next += direction) {
      if (this.y[next] === this.y[index]) continue;
      line ??= this.y[next];
      if (this.y[next] !== line) break;
      if (best === index || Math.abs(this.x[next] - this.x[index]) < Math.abs(this.x[best] - this.x[index])) best = next;
    }
    return best;
  }

  press(event) {
    const {cursor, cells} = this;
    const to = {ArrowLeft: cursor - 1, ArrowRight: cursor + 1, Home: 0, End: cells.length - 1}[event.key] ??
      (event.key === 'ArrowUp' ? this.lineFrom(cursor, -1)
        : event.key === 'ArrowDown' ? this.lineFrom(cursor, 1) : undefined);
    if (to !== undefined) {
      this.move(Math.min(cells.length - 1, Math.max(0, to)));
    } else if ((event.key === 'Enter' || event.key === ' ') && cells[cursor]) {
      this.opens(cells[cursor]);
    } else {
      return;
    }
    event.preventDefault();
  }
}

function fitting(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  let end = Math.min(text.length, 40);
  while (end > 1 && context.measureText(`${text.slice(0, end)}…`).width > width) end -= 1;
  return `${text.slice(0, end)}…`;
}
