// What is told becomes elements here. Names and texts may be anybody's: they are only ever text.
import {STATES, concernsOf, duration, endOf, isProblem, rankFactsOf, textOf} from './model.js';
import {markCanvas} from './grid.js';

export const $ = (id) => document.getElementById(id);

const EVENTS_SHOWN = 200;
const ATTENTION_SHOWN = 20;

/** An element with properties, and children that are elements or text. */
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.includes('-') || name === 'role') element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children.filter((child) => child !== undefined && child !== null));
  return element;
}

/** A live region speaks whenever it is written: only when it says something else. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function showFacts(list, facts) {
  const wanted = JSON.stringify(facts);
  if (list.told === wanted) return;
  list.told = wanted;
  list.replaceChildren(...facts.map(([name, text]) =>
    make('div', {}, make('dt', {}, name), make('dd', {}, text))));
}

export const PHASE_WORDS = {forming: 'forming', running: 'running', stopping: 'stopping',
  closed: 'over', adopting: 'asking the nodes'};

function phaseClass(job) {
  if (job.phase === 'closed') return job.exit_code === 0 ? 'phase good' : 'phase bad';
  return {running: 'phase good', stopping: 'phase warn', forming: 'phase warn'}[job.phase] ?? 'phase';
}

const EXIT_ENDED = 98; // an operator has stopped it

function endWord(job) {
  if (job.exit_code === 0) return 'succeeded';
  return job.exit_code === EXIT_ENDED ? 'ended' : 'failed';
}

export function showPhase(element, job) {
  const word = job.phase === 'closed' ? endWord(job) : PHASE_WORDS[job.phase];
  say(element, word ?? job.phase);
  element.className = phaseClass(job);
}

export function showJobs(list, jobs, selected, leftOut) {
  const wanted = JSON.stringify([jobs.map((job) => [job.job, job.phase, job.exit_code, job.generation,
    job.world_size, job.waits_for]), selected, leftOut]);
  if (list.told === wanted) return;
  list.told = wanted;
  const focused = document.activeElement?.closest?.('#jobs a')?.hash;
  list.replaceChildren(...jobs.map((job) => {
    const phase = make('span');
    showPhase(phase, job);
    const link = make('a', {href: `#${encodeURIComponent(job.job)}`},
      make('span', {className: 'jobname'}, job.job), phase,
      make('small', {}, job.waits_for || `${job.world_size ?? 0} ranks`));
    if (job.job === selected) link.setAttribute('aria-current', 'page');
    return make('li', {}, link);
  }));
  if (leftOut > 0) list.append(make('li', {className: 'hint'}, `and ${leftOut} more`));
  if (focused) [...list.querySelectorAll('a')].find((link) => link.hash === focused)?.focus();
}

export function showLegend(list, cells, slowest) {
  const counts = STATES.map(() => 0);
  for (const cell of cells) counts[cell.state] += 1;
  const wanted = `${counts} ${slowest}`;
  if (list.told === wanted) return;
  list.told = wanted;
  list.hidden = cells.length === 0;
  const items = STATES.flatMap((state, index) => (counts[index] === 0 ? [] : [make('li', {},
    markCanvas(state), `${state.word} `, make('b', {}, counts[index].toLocaleString('en')))]));
  if (slowest !== null) items.push(make('li', {}, make('span', {className: 'mark ring', 'aria-hidden': 'true'}), 'slowest ', make('b', {}, '1')));
  list.replaceChildren(...items);
}

export function showAttention(list, job) {
  const told = concernsOf(job);
  const lines = told.slice(0, ATTENTION_SHOWN);
  const more = told.length - lines.length;
  const wanted = JSON.stringify([lines, more]);
  if (list.told === wanted) return;
  list.told = wanted;
  list.hidden = lines.length === 0;
  list.replaceChildren(...lines.map(([name, why]) => make('li', {}, make('b', {}, name), `: ${why}`)));
  if (more > 0) list.append(make('li', {className: 'hint'}, `and ${more} more nodes`));
}

const logCommand = (rank, failure) =>
  `ddpctl logs --rank ${rank}${failure?.generation ? ` --generation ${failure.generation}` : ''}`;

/** A text of many lines that can be scrolled by keyboard, too. */
const block = (name, text) => [make('h3', {}, name),
  make('pre', {tabIndex: 0, role: 'group', 'aria-label': name}, text)];

/** What was read of a rank: its end is seen. */
export function showRead(what, text) {
  const name = what === 'logs' ? 'End of its log' : 'Where it is now';
  $('rank-read').replaceChildren(...block(name, text || 'It has written nothing.'));
  const shown = $('rank-read').querySelector('pre');
  if (what === 'logs') shown.scrollTop = shown.scrollHeight;
}

export function showRank(cell, story) {
  const evidence = cell.rank === null ? [] : story.evidenceOf(cell.rank);
  const failure = evidence.find((event) => event.event === 'failure');
  const words = evidence.find((event) => event.event === 'last_words');
  const host = cell.node.hostname || cell.node.node;
  say($('rank-title'), cell.rank === null ? `A free slot of ${host}` : `Rank ${cell.rank} on ${host}`);
  showFacts($('rank-facts'), rankFactsOf(cell));
  const box = $('rank-evidence');
  const wanted = `${cell.rank} ${failure?.seq} ${words?.seq}`;
  if (box.told === wanted) return;
  box.told = wanted;
  const parts = [];
  if (failure) {
    parts.push(make('p', {}, `In generation ${failure.generation} it ${endOf(failure)}, as process ${failure.pid}, ${timeText(failure)}.${failure.kernel ? ` The kernel says: ${failure.kernel}` : ''}`));
    const said = words ?? failure;
    for (const [name, text] of [['What it said last', said.last_words ?? words?.text],
      ['End of its stderr', said.stderr], ['End of its stdout', said.stdout]]) {
      if (text) parts.push(...block(name, text));
    }
    if (failure.stacks) parts.push(...block('Stacks', failure.stacks));
    if (failure.logs) parts.push(make('p', {}, 'Logs: ', make('code', {}, failure.logs)));
  }
  if (cell.rank !== null) {
    parts.push(make('p', {className: 'hint'}, `All that it wrote, on ${host}: `,
      make('code', {}, logCommand(cell.rank, failure))));
  }
  box.replaceChildren(...parts);
}

// ---------------------------------------------------------------------------------- time

/** One bar of parts with their names and times; widths are set as properties, not as style text. */
function bar(parts, label) {
  const whole = parts.reduce((sum, [, ms]) => sum + ms, 0);
  const track = make('div', {className: 'bar', role: 'img', 'aria-label':
    `${label}: ${parts.map(([name, ms]) => `${name} ${duration(ms)}`).join(', ')}`});
  for (const [name, ms, index] of parts) {
    const part = make('span', {className: `part part-${index}`, title: `${name} ${duration(ms)}`});
    part.style.flexGrow = `${whole > 0 ? Math.max(ms / whole, 0.004) : 1}`;
    track.append(part);
  }
  return track;
}

function keys(parts, whole) {
  return make('ul', {className: 'legend'}, ...parts.map(([name, ms, index]) => make('li', {},
    make('span', {className: `mark part-${index}`, 'aria-hidden': 'true'}), `${name} `,
    make('b', {}, duration(ms)), whole > 0 ? ` (${(100 * ms / whole).toFixed(1)} %)` : '')));
}

const SHARE_COLOURS = {training: 0, 'at work': 0, redone: 1, restarting: 2, waiting: 3, starting: 4, checkpointing: 5};
const PHASE_COLOURS = 9;

function restartItem(restart) {
  const parts = restart.phases.map(({name, ms, estimated}, index) =>
    [estimated ? `${name} (estimated)` : name, ms, index % PHASE_COLOURS]);
  const whole = parts.reduce((sum, [, ms]) => sum + ms, 0);
  const to = restart.to === undefined ? 'so far' : `to generation ${restart.to}`;
  return make('li', {}, make('h3', {}, `Generation ${restart.from} ${to}: ${duration(whole)}`),
    make('p', {className: 'hint'}, [timeText(restart), restart.cause].filter(Boolean).join(' · ')),
    bar(parts, 'Phases of this restart'), keys(parts, 0));
}

export function showTime(box, time) {
  const wanted = JSON.stringify(time, (key, value) => (typeof value === 'number' ? Math.round(value / 1000) : value));
  if (box.told === wanted) return;
  box.told = wanted;
  const shares = time.shares.filter(([, ms]) => ms > 0).map(([name, ms]) => [name, ms, SHARE_COLOURS[name]]);
  const whole = shares.reduce((sum, [, ms]) => sum + ms, 0);
  const parts = [];
  if (whole > 0) parts.push(bar(shares, 'Shares of the time'), keys(shares, whole));
  if (time.estimated) parts.push(make('p', {className: 'hint'}, 'Estimated: not all workers tell their steps.'));
  if (time.restarts.length > 0) {
    parts.push(make('ol', {className: 'restarts', tabIndex: 0, 'aria-label': 'Restarts, newest first'},
      ...[...time.restarts].reverse().map(restartItem)));
  } else {
    parts.push(make('p', {className: 'hint'}, 'No restart so far.'));
  }
  box.replaceChildren(...parts);
}

// -------------------------------------------------------------------------------- events

export function timeText(event) {
  const at = new Date(event.time);
  if (Number.isNaN(at.getTime())) return `${event.time ?? ''}`;
  const day = at.toDateString() === new Date().toDateString() ? '' : `${at.toLocaleDateString('en-CA')} `;
  return `${day}${at.toLocaleTimeString('en-GB')}.${String(at.getMilliseconds()).padStart(3, '0')}`;
}

const FIELDS_KNOWN = new Set(['v', 'seq', 'time', 'mono_ns', 'event', 'text']);

function details(event) {
  const rest = Object.entries(event).filter(([name, value]) =>
    !FIELDS_KNOWN.has(name) && (typeof value !== 'object' || value === null));
  return make('dl', {className: 'facts'}, ...rest.map(([name, value]) => make('div', {},
    make('dt', {}, name), make('dd', {}, `${value}`.includes('\n')
      ? make('pre', {tabIndex: 0, role: 'group', 'aria-label': name}, `${value}`) : `${value}`))));
}

function eventItem(event, opens) {
  const where = [event.host ?? event.node, event.rank === undefined ? undefined : `rank ${event.rank}`]
    .filter((part) => part !== undefined).join(', ');
  const summary = make('summary', {}, make('time', {dateTime: event.time}, timeText(event)),
    make('span', {className: isProblem(event) ? 'kind problem' : 'kind'}, event.event.replaceAll('_', ' ')),
    make('span', {className: 'where'}, [event.generation ? `generation ${event.generation}` : '', where].filter(Boolean).join(' · ')),
    make('span', {className: 'text'}, textOf(event)));
  const item = make('details', {open: opens}, summary);
  const fill = () => item.children.length < 2 && item.append(details(event));
  if (opens) fill();
  item.addEventListener('toggle', fill, {once: true});
  return make('li', {}, item);
}

const sayKind = (kind) => kind.replaceAll('_', ' ');

/** Choices of a filter, kept as they are if nothing new is there. */
function showChoices(select, all, values, word) {
  const wanted = JSON.stringify(values);
  if (select.told === wanted) return;
  select.told = wanted;
  const chosen = select.value;
  select.replaceChildren(...all, ...values.map((value) => make('option', {value}, word(value))));
  select.value = [...select.options].some((option) => option.value === chosen) ? chosen : '';
}

export class EventList {
  constructor() {
    this.limit = EVENTS_SHOWN;
    this.shown = new Map();
    $('older').addEventListener('click', () => {
      this.limit += EVENTS_SHOWN;
      this.show(this.story);
    });
    for (const id of ['filter-kind', 'filter-node', 'filter-text']) {
      $(id).addEventListener('input', () => this.show(this.story));
    }
    $('filters').addEventListener('submit', (event) => event.preventDefault());
  }

  matches(event, kind, node, text) {
    return (kind === '' || (kind === '!' ? isProblem(event) : event.event === kind)) &&
      (node === '' || event.node === node || event.host === node) &&
      (text === '' || JSON.stringify(event).toLowerCase().includes(text));
  }

  show(story) {
    if (this.story !== story) this.shown.clear();
    this.story = story;
    const {events} = story;
    showChoices($('filter-kind'), [make('option', {value: ''}, 'all'), make('option', {value: '!'}, 'problems')],
      [...new Set(events.map((event) => event.event))].sort(), sayKind);
    showChoices($('filter-node'), [make('option', {value: ''}, 'all')],
      [...new Set(events.map((event) => event.host ?? event.node).filter(Boolean))].sort(), String);
    const [kind, node] = [$('filter-kind').value, $('filter-node').value];
    const text = $('filter-text').value.trim().toLowerCase();
    const found = events.filter((event) => this.matches(event, kind, node, text)).reverse();
    const now = found.slice(0, this.limit);
    const items = new Map(now.map((event) => [event, this.shown.get(event) ?? eventItem(event, false)]));
    this.shown = items;
    const list = $('events');
    // Those that stay are left where they are: who reads one, or has it focused, keeps it.
    const kept = new Set(items.values());
    for (const item of [...list.children]) if (!kept.has(item)) item.remove();
    let place = list.firstChild;
    for (const item of items.values()) {
      if (item === place) place = place.nextSibling;
      else list.insertBefore(item, place);
    }
    $('older').hidden = found.length <= this.limit;
    say($('events-count'), `${found.length.toLocaleString('en')} of ${events.length.toLocaleString('en')} events, newest first`);
  }
}
