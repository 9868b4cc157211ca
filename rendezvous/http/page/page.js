// One page for the jobs of a rendezvous: asks /status every few seconds, follows /events of the job
// that is shown, and has the views show what is told.
import * as ask from './ask.js';
import {Grid} from './grid.js';
import {STATES, Story, cellOfEvents, cellsOf, factsOf, jobsOf, sentenceOf, timeOf} from './model.js';
import {$, EventList, say, showAttention, showFacts, showJobs, showLegend, showPhase, showRank, showRead, showTime} from './views.js';
import {askForTokens, confirmAct} from './dialogs.js';

const STATUS_EVERY_MS = 5000;
const AFTER_EVENTS_MS = 300;
const SHOWN_EVERY_MS = 250; // whatever many nodes tell meanwhile

const now = {
  jobs: [],
  leftOut: 0,
  job: null,       // of the newest /status
  story: new Story(),
  stream: null,
  progress: [],    // told since it was shown
  cells: [],
  chosen: null,    // {rank, node, local} of the rank whose details are open
  statusTrouble: '',
  streamTrouble: '',
  isOpened: false, // /status has been answered
};

const list = new EventList();
const grid = new Grid($('grid'), {points: showCursor, opens: openRank});

// --------------------------------------------------------------------------------- shows

function showLink() {
  const over = now.streamTrouble === 'the job is over';
  const trouble = now.statusTrouble || (over ? '' : now.streamTrouble);
  $('link').className = trouble ? 'link bad' : 'link good';
  say($('link'), trouble ? `not live: ${trouble}` : now.isOpened ? (now.job?.recorded ? 'recorded' : over ? 'up to date' : 'live') : 'connecting…');
}

function showCursor(cell) {
  if (!cell) {
    $('cursor').textContent = '';
    return;
  }
  const parts = [cell.rank === null ? 'free slot' : `rank ${cell.rank}`, cell.node.hostname || cell.node.node,
    STATES[cell.state].word];
  if (cell.told?.step !== undefined) parts.push(`step ${cell.told.step.toLocaleString('en')}`);
  if (cell.told?.steps_per_s > 0) parts.push(`${cell.told.steps_per_s.toFixed(2)} steps/s`);
  say($('cursor'), parts.join(' · '));
}

function showChosen() {
  const {chosen} = now;
  $('rank').hidden = !chosen;
  $('rank-reads').hidden = !chosen || chosen.rank === null;
  if (!chosen) return;
  // A rank that is gone has left its place on a node, which may be waiting or in quarantine.
  const isThere = (one) => one.node.node === chosen.node.node && one.local === chosen.local;
  const cell = now.cells.find((one) => (chosen.rank !== null ? one.rank === chosen.rank : isThere(one))) ??
    now.cells.find(isThere);
  if (cell) now.chosen = cell;
  showRank(now.chosen, now.story);
  const {node} = now.chosen;
  $('node-acts').hidden = !ask.mayAct() || now.job.phase === 'closed';
  $('node-acts').querySelector('[data-act=release]').hidden = !(node.quarantined_ms > 0);
  $('node-acts').querySelector('[data-act=quarantine]').hidden = node.quarantined_ms > 0;
}

/** Everything about the job that may have changed. The time that it takes is measured. */
function show() {
  const {job, story} = now;
  const begun = performance.now();
  clearTimeout(showing);
  showing = null;
  showJobs($('jobs'), now.jobs, job?.job, now.leftOut);
  $('empty').hidden = job !== null || !now.isOpened;
  $('view').hidden = job === null;
  if (job !== null) {
    takeProgress(job);
    document.title = `${job.job} · ddprun`;
    say($('name'), job.job);
    showPhase($('phase'), job);
    say($('sentence'), sentenceOf(job, story));
    showFacts($('facts'), factsOf(job));
    $('acts').hidden = !ask.mayAct() || job.phase === 'closed';
    $('acts').querySelector('[data-act=release]').hidden = !(job.held_ms > 0);
    now.cells = cellsOf(job, story);
    const slowest = job.slowest?.rank ?? null;
    grid.show(now.cells, slowest);
    $('none').hidden = now.cells.length > 0;
    $('grid-help').hidden = now.cells.length === 0;
    showLegend($('legend'), now.cells, slowest);
    showAttention($('attention'), job);
    showTime($('time'), timeOf(job));
    showChosen();
  }
  performance.clearMeasures('ddprun-update');
  performance.measure('ddprun-update', {start: begun, end: performance.now()});
}

/** The answer to what was asked of a rank that is not shown any more is nobody's. */
async function readRank(what) {
  const {chosen, job} = now;
  showRead(what, 'Its node is asked…');
  const text = await ask.read(job.job, what, chosen.rank).catch((failure) => failure.message);
  if (now.job?.job === job.job && now.chosen?.rank === chosen.rank) showRead(what, text);
}

function openRank(cell) {
  if (cell.rank !== now.chosen?.rank) $('rank-read').replaceChildren();
  now.chosen = cell;
  showChosen();
  $('rank').focus();
}

function closeRank() {
  now.chosen = null;
  showChosen();
  $('grid').focus();
}

// ---------------------------------------------------------------------------------- asks

function follow(name) {
  now.stream?.stop();
  now.story = new Story();
  now.chosen = null;
  now.streamTrouble = '';
  list.show(now.story);
  now.stream = new ask.Stream(name, {
    isAt: () => now.story.events.at(-1),
    isOver: () => now.story.verdict !== null || now.job?.recorded === true,
    begins: () => {
      now.story = new Story();
    },
    says: (text) => {
      now.streamTrouble = text;
      showLink();
    },
    hears: hear,
  });
}

let soon = null;
let showing = null;

function hear(told) {
  const progress = told.filter((event) => event.event === 'progress');
  const events = told.filter((event) => event.event !== 'progress');
  now.progress.push(...progress);
  for (const event of events) now.story.fold(event);
  if (events.length > 0) {
    list.show(now.story);
    soon ??= setTimeout(look, AFTER_EVENTS_MS);
  }
  showing ??= setTimeout(show, SHOWN_EVERY_MS);
}

/** What ranks have said since the answer of /status. */
function takeProgress(job) {
  if (now.progress.length === 0) return;
  const told = new Map((job.ranks ?? []).map((rank) => [rank.rank, rank]));
  const nodes = new Map((job.nodes ?? []).map((node) => [node.node, node]));
  for (const event of now.progress) {
    const {memory_bytes, memory_limit_bytes, memory_pressure} = event;
    if (memory_bytes !== undefined && nodes.has(event.node)) {
      Object.assign(nodes.get(event.node), {memory_bytes, memory_limit_bytes, memory_pressure});
    }
    for (const rank of event.ranks ?? []) told.set(rank.rank, {node: event.node, ...rank});
  }
  job.ranks = [...told.values()];
  job.slowest = now.progress.at(-1).slowest;
  now.progress = [];
}

const wanted = () => {
  try {
    return decodeURIComponent(location.hash.slice(1));
  } catch {
    return '';
  }
};

function choose() {
  const before = now.job;
  const name = wanted();
  now.job = now.jobs.find((job) => job.job === name) ?? now.jobs.find((job) => job.job === before?.job) ??
    now.jobs[0] ?? null;
  // The nodes of a job that is over leave: they are shown as they were.
  if (now.job && before?.job === now.job.job && now.job.phase === 'closed' && !now.job.nodes?.length) {
    now.job.nodes = before.nodes;
  }
  // A job that was over and is not, is another run of the same name.
  const isAnother = now.job?.job !== before?.job ||
    (before?.phase === 'closed' && now.job?.phase !== 'closed');
  if (now.job && isAnother) follow(now.job.job);
  if (!now.job) now.stream?.stop();
}

let timer = null;
let isAsking = false;

async function look() {
  clearTimeout(timer);
  clearTimeout(soon);
  soon = null;
  if (isAsking) return;
  isAsking = true;
  try {
    const status = await ask.status();
    now.jobs = jobsOf(status);
    now.progress = [];
    now.leftOut = status.jobs_left_out ?? 0;
    now.statusTrouble = '';
    now.isOpened = true;
    choose();
    show();
  } catch (failure) {
    now.statusTrouble = failure.message;
    if (failure.status === 403 && !$('token-dialog').open && !now.isOpened) {
      askForTokens(failure.message, look);
    }
  }
  isAsking = false;
  showLink();
  timer = setTimeout(look, STATUS_EVERY_MS);
}

// -------------------------------------------------------------------------------- people

addEventListener('hashchange', () => {
  choose();
  show();
  $('job').focus();
});
document.addEventListener('visibilitychange', () => (document.hidden ? clearTimeout(timer) : look()));
document.addEventListener('keydown', (event) => {
  if (event.key === 'Escape' && now.chosen && !document.querySelector('dialog[open]')) closeRank();
});
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => {
  $('legend').told = '';
  grid.redraw();
  if (now.job) show();
});
$('rank-close').addEventListener('click', closeRank);
$('find').addEventListener('submit', (event) => {
  event.preventDefault();
  const rank = Number($('find-rank').value || -1);
  const cell = grid.moveToRank(rank) ?? cellOfEvents(rank, now.story);
  if (cell) openRank(cell);
  else say($('cursor'), `There is no rank ${$('find-rank').value}.`);
});
$('tokens').addEventListener('click', () => askForTokens('', () => {
  if (now.job) follow(now.job.job);
  look();
}));
for (const button of document.querySelectorAll('[data-read]')) {
  button.addEventListener('click', () => readRank(button.dataset.read));
}
for (const button of document.querySelectorAll('[data-act]')) {
  button.addEventListener('click', () => confirmAct(button.dataset.act, {
    job: now.job.job, node: button.closest('#node-acts') ? now.chosen.node : null,
    sizes: now.job.nnodes, most: now.job.max_nodes, target: now.job.target_nodes,
    here: now.job.nodes.filter((node) => node.standing === 'member').length}));
}
look();
