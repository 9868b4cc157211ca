// The grid of nodes and ranks, on a canvas: only cells that have changed are drawn.
import {STATES} from './model.js';

const LABELLED_NODES_MAX = 64;
const LINE_RANKS_MAX = 8;
const LABEL_MAX = 180;
const FONT = '13px system-ui, sans-serif';
const RATIO_MAX = 2; // a thousand nodes on a phone's screen are large enough

/** Draws one mark, with rectangles where they do: thousands of them at once cost little. */
export function drawMark(context, mark, colour, paper, x, y, size) {
  const pen = Math.max(1.25, size / 8);
  const box = (left, top, width, height) => context.fillRect(x + left, y + top, width, height);
  context.fillStyle = colour;
  if (mark === 'full') {
    box(0, 0, size, size);
    return;
  }
  box(0, 0, size, size);
  context.fillStyle = paper;
  const hole = mark === 'hole' ? size * 0.34 : pen;
  box(hole, hole, size - 2 * hole, size - 2 * hole);
  context.fillStyle = colour;
  const inset = size * 0.26;
  const line = (from, to) => {
    context.beginPath();
    context.moveTo(x + inset, y + from);
    context.lineTo(x + size - inset, y + to);
    context.strokeStyle = colour;
    context.lineWidth = pen;
    context.stroke();
  };
  switch (mark) {
    case 'half': box(0, size / 2, size, size / 2); break;
    case 'dash': box(inset, size * 0.4, size - 2 * inset, size * 0.2); break;
    case 'dot': box(size * 0.33, size * 0.33, size * 0.34, size * 0.34); break;
    case 'slash': line(size - inset, inset); break;
    case 'bars': box(size * 0.28, inset, size * 0.15, size - 2 * inset); box(size * 0.57, inset, size * 0.15, size - 2 * inset); break;
    case 'cross': line(inset, size - inset); line(size - inset, inset); break;
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
  drawMark(context, state.mark, colourOf(`--${state.id}`), colourOf('--paper'), 0, 0, 14);
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
    const label = this.isLabelled ? this.labelWidth(starts) : 0;
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

  labelWidth(starts) {
    this.context.font = FONT;
    const widths = starts.map((start) => this.context.measureText(nameOf(this.cells[start].node)).width);
    return Math.min(LABEL_MAX, Math.max(...widths) + 14);
  }

  readColours() {
    [this.ink, this.paper, this.focus] = ['--ink', '--paper', '--focus'].map(colourOf);
    this.colours = STATES.map((state) => colourOf(`--${state.id}`));
  }

  redraw() {
    if (this.cells.length === 0 || !this.x) return;
    this.readColours();
    const {context} = this;
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    context.fillStyle = this.paper;
    context.fillRect(0, 0, this.canvas.width, this.canvas.height);
    context.fillStyle = this.ink;
    context.font = FONT;
    context.textBaseline = 'middle';
    for (const [x, y, node] of this.labels) {
      context.fillText(fitting(context, nameOf(node), LABEL_MAX - 12), x, y + this.size / 2 + 1);
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
    drawMark(context, STATES[cell.state].mark, this.colours[cell.state], this.paper, x, y, size);
    this.shown[index] = cell.state;
    const isCursor = index === this.cursor && document.activeElement === this.canvas;
    if (isCursor || (cell.rank !== null && cell.rank === this.slowest)) {
      context.strokeStyle = isCursor ? this.focus : this.ink;
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

const nameOf = (node) => node.hostname || node.node;

function fitting(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  let end = Math.min(text.length, 40);
  while (end > 1 && context.measureText(`${text.slice(0, end)}…`).width > width) end -= 1;
  return `${text.slice(0, end)}…`;
}
