// What /status and /events say, as the page shows it. Pure: no document, no network, no clock.

/** States of a rank, worst first: their word, and the mark that tells them apart without colour. */
export const STATES = [
  {id: 'failed', word: 'failed', mark: 'cross'},
  {id: 'lost', word: 'cut off', mark: 'slash'},
  {id: 'quiet', word: 'no sign of life', mark: 'bars'},
  {id: 'stopping', word: 'stopping', mark: 'dash'},
  {id: 'starting', word: 'starting', mark: 'half'},
  {id: 'running', word: 'running, tells no steps', mark: 'hole'},
  {id: 'training', word: 'training', mark: 'full'},
  {id: 'finished', word: 'finished', mark: 'dot'},
  {id: 'waiting', word: 'not in the generation', mark: 'empty'},
];
export const STATE = Object.fromEntries(STATES.map((state, index) => [state.id, index]));

const PROBLEMS = new Set(['failure', 'last_words', 'lost', 'link_down', 'quiet', 'quarantine',
  'refused', 'held_up', 'durability', 'hang_notice']);
const STARTING = new Set(['spawned', 'main', 'group_ready', 'resumed']);

export const isProblem = (event) =>
  PROBLEMS.has(event.event) || (event.event === 'verdict' && event.exit_code !== 0);

export function duration(ms) {
  if (ms === undefined || ms === null || Number.isNaN(ms)) return '';
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const s = ms / 1000;
  if (s < 60) return `${s < 10 ? s.toFixed(1) : Math.round(s)} s`;
  const minutes = Math.floor(s / 60);
  if (minutes < 60) return `${minutes} min ${Math.floor(s % 60)} s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} days ${hours % 24} h`;
}

export function bytes(count) {
  if (count === undefined) return '';
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  for (; count >= 1024 && unit < units.length - 1; unit += 1) count /= 1024;
  return `${count < 10 && unit > 0 ? count.toFixed(1) : Math.round(count)} ${units[unit]}`;
}

const percent = (part) => `${(100 * part).toFixed(part < 0.1 ? 1 : 0)} %`;
const many = (count, word) => `${count.toLocaleString('en')} ${word}${count === 1 ? '' : 's'}`;

/** The jobs of a daemon's answer, or the one of a run's own socket, in one form. */
export function jobsOf(status) {
  if (Array.isArray(status.jobs)) return status.jobs;
  const workers = status.workers ?? [];
  const host = status.host ?? 'this node';
  const ended = status.waits_for ? 'forming' : 'running';
  return [{
    job: status.job,
    phase: workers.some((worker) => worker.pid) ? 'running' : ended,
    generation: status.generation,
    waits_for: status.waits_for,
    world_size: status.world_size,
    age_ms: status.time?.whole_ms,
    nodes: [{node: host, hostname: host, standing: 'member', is_connected: true,
             base_rank: workers[0]?.rank ?? 0, slots: workers.length,
             memory_bytes: status.memory_bytes, memory_limit_bytes: status.memory_limit_bytes,
             memory_pressure: status.memory_pressure}],
    ranks: status.ranks ?? workers.map((worker) => ({...worker, node: host})),
    slowest: status.slowest,
    stall: status.stall,
    time: status.time,
    checkpoint: status.checkpoint,
  }];
}

/** What the events of one job amount to; fold() takes them in order. */
export class Story {
  constructor() {
    this.events = [];
    this.clear(0);
    this.verdict = null;
    this.stop = null;
  }

  clear(generation) {
    this.generation = generation;
    this.failed = new Map();
    this.finished = new Set();
    this.quiet = new Set();
  }

  get last() {
    return this.events.at(-1)?.seq ?? 0;
  }

  fold(event) {
    this.events.push(event);
    switch (event.event) {
      case 'formed':
        this.clear(event.generation);
        this.stop = null;
        break;
      case 'failure':
        if (event.generation === this.generation) this.failed.set(event.rank, event);
        break;
      case 'finished':
        this.finished.add(event.rank);
        break;
      case 'quiet':
        if (event.quiet_ms > 0) this.quiet.add(event.node);
        else this.quiet.delete(event.node);
        break;
      case 'stop':
        this.stop ??= event;
        break;
      case 'verdict':
        this.verdict = event;
        break;
    }
  }

  /** Of all that is kept, what was said of one rank: its failures, newest first. */
  evidenceOf(rank) {
    return this.events.filter((event) =>
      event.rank === rank && (event.event === 'failure' || event.event === 'last_words')).reverse();
  }
}

/** One cell a rank or free slot, in the order of the nodes. */
export function cellsOf(job, story) {
  const told = new Map((job.ranks ?? []).map((rank) => [rank.rank, rank]));
  const cells = [];
  for (const node of job.nodes ?? []) {
    for (let local = 0; local < (node.slots ?? 1); local += 1) {
      const rank = node.base_rank === undefined ? null : node.base_rank + local;
      const one = rank === null ? undefined : told.get(rank);
      cells.push({rank, local, node, told: one, state: stateOf(job, story, node, rank, one)});
    }
  }
  return cells;
}

/** A rank whose node has left, as far as events tell of it; undefined: they do not. */
export function cellOfEvents(rank, story) {
  const failure = story.evidenceOf(rank).find((event) => event.event === 'failure');
  return failure && {rank, local: failure.local_rank, state: STATE.failed,
    node: {node: failure.node ?? failure.host, hostname: failure.host}};
}

function stateOf(job, story, node, rank, told) {
  if (rank === null || node.standing !== 'member') {
    return node.is_connected === false ? STATE.lost : STATE.waiting;
  }
  if (told?.phase === 'failed' || story.failed.has(rank)) return STATE.failed;
  if (told?.phase === 'finished' || story.finished.has(rank)) return STATE.finished;
  if (node.is_connected === false || node.is_suspect) return STATE.lost;
  if (job.phase === 'stopping') return STATE.stopping;
  if (job.phase !== 'running') return STATE.waiting;
  if (story.quiet.has(node.node) || isLate(told)) return STATE.quiet;
  if (STARTING.has(told?.phase) && told.output_age_ms === undefined) return STATE.starting;
  return told?.step === undefined && told?.phase !== 'training' ? STATE.running : STATE.training;
}

/** Its last step is much longer ago than its steps take, and than a slow save. */
const isLate = (told) =>
  told?.phase === 'training' && told.steps_per_s === 0 && told.step_age_ms > 60000;

const sentence = (text) => `${text[0].toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? '' : '.'}`;

/** How the job stands: who is waited for, and why. */
export function sentenceOf(job, story) {
  const why = story.stop?.text ? `, after this: ${story.stop.text}` : '';
  const waits = job.waits_for;
  const failed = [...story.failed.values()];
  switch (job.phase) {
    case 'closed':
      return sentence(`${job.verdict || 'the job is over'}${
        job.exit_code === undefined ? '' : ` (exit code ${job.exit_code})`}`);
    case 'adopting':
      return sentence(waits || 'this rendezvous was started again and asks the nodes what they run');
    case 'stopping':
      return sentence(`${waits || `generation ${job.generation} is stopping`}${why}`);
    case 'forming':
      return sentence(`${waits || 'a generation forms'}${why}`);
    default:
      if (story.verdict) return sentence(story.verdict.text);
      if (failed.length > 0) return sentence(`rank ${failed[0].rank} ${endOf(failed[0])} in generation ${job.generation}`);
      if (job.stall) return sentence(job.stall.text);
      return sentence(waits || `generation ${job.generation} runs`);
  }
}

const PHASE_FACTS = {forming: 'Forming for', running: 'Running for', stopping: 'Stopping for',
  closed: 'Over for', adopting: 'Asking for'};

const median = (values) => values.sort((a, b) => a - b)[values.length >> 1];

const PLACES = {disk: 'on disk', memory: 'in memory', partner: "in a partner's memory"};

/** The size of a save, how long it took, and where it is. */
const saveTextOf = (save) => `${bytes(save.bytes)} in ${duration(save.took_ms)}, stalled ${duration(save.stall_ms)}, ${
  `${save.where}`.split(',').map((word) => PLACES[word] ?? word).join(' and ')}`;

const savedTextOf = (save) => `step ${save.step.toLocaleString('en')}, ${saveTextOf(save)}, ${duration(save.age_ms)} ago`;

/** Names and words of what needs attention: nodes, and saves that fall behind. */
export function concernsOf(job) {
  const concerns = (job.nodes ?? []).map((node) => [node.hostname || node.node, concernOf(node)]).filter(([, why]) => why);
  for (const node of job.absent ?? []) concerns.push([node.hostname || node.node, concernOf({...node, standing: 'absent'})]);
  if (job.checkpoint?.behind) concerns.unshift(['Checkpoints', job.checkpoint.behind.replace(/^checkpoints /, '')]);
  return concerns;
}

/** [name, text] of what people ask first; what nobody told is left out. */
export function factsOf(job) {
  const nodes = job.nodes ?? [];
  const members = nodes.filter((node) => node.standing === 'member').length;
  const others = nodes.length + (job.nodes_left_out ?? 0) - members;
  const facts = [['Generation', `${job.generation ?? 0}`],
    ['Nodes', `${members.toLocaleString('en')}${job.nnodes ? ` of ${job.nnodes}` : ''}${others > 0 ? `, ${others} more here` : ''}`],
    ['Ranks', (job.world_size ?? 0).toLocaleString('en')]];
  if (job.restarts_used !== undefined) {
    const losses = job.node_losses_used ? `, ${many(job.node_losses_used, 'node')} lost` : '';
    facts.push(['Restarts', `${job.restarts_used} of ${job.max_restarts}${losses}`]);
  }
  const ranks = job.ranks ?? [];
  const steps = ranks.filter((rank) => rank.step !== undefined).map((rank) => rank.step);
  if (steps.length > 0) {
    const least = steps.reduce((a, b) => Math.min(a, b));
    const most = steps.reduce((a, b) => Math.max(a, b));
    facts.push(['Step', least === most ? most.toLocaleString('en')
      : `${least.toLocaleString('en')} to ${most.toLocaleString('en')}`]);
  }
  const rates = ranks.filter((rank) => rank.steps_per_s > 0).map((rank) => rank.steps_per_s);
  if (rates.length > 0) facts.push(['Steps/s', median(rates).toFixed(2)]);
  if (job.slowest) {
    const cost = job.slowest.cost_share === undefined ? ''
      : `: the others wait for it ${percent(job.slowest.cost_share)} of the time`;
    facts.push(['Slowest', `rank ${job.slowest.rank} on ${job.slowest.host ?? job.slowest.node}${cost}`]);
  }
  if (job.checkpoint?.step !== undefined) facts.push(['Last checkpoint', savedTextOf(job.checkpoint)]);
  if (job.checkpoint?.failures > 0) facts.push(['Failed saves', job.checkpoint.failures.toLocaleString('en')]);
  const share = job.time?.whole_ms > 0 ? job.time.training_ms / job.time.whole_ms : undefined;
  if (share !== undefined) facts.push([job.time.estimated ? 'At work' : 'Training', `${percent(share)} of the time`]);
  if (job.in_phase_ms !== undefined) facts.push([PHASE_FACTS[job.phase] ?? 'So for', duration(job.in_phase_ms)]);
  if (job.age_ms !== undefined) facts.push(['First join', `${duration(job.age_ms)} ago`]);
  return facts;
}

/** What one line about a node says beside its name; empty: nothing is the matter with it. */
export function concernOf(node) {
  const concerns = [];
  if (node.is_connected === false) concerns.push(`not connected; its lease ends in ${duration(node.lease_left_ms)}`);
  else if (node.is_suspect) concerns.push('cut off, believed alive until its lease ends');
  if (node.leaving_signal) concerns.push(`was told to leave (signal ${node.leaving_signal})`);
  if (node.memory_limit_bytes > 0 && node.memory_bytes >= 0.9 * node.memory_limit_bytes) {
    concerns.push(`its memory gets short: ${part(node.memory_bytes, node.memory_limit_bytes)} in use`);
  }
  if (node.log_lost) concerns.push(node.log_lost);
  if (node.quarantined_ms > 0) concerns.push(`in quarantine for ${duration(node.quarantined_ms)}: it ${node.quarantine_why}`);
  if (node.standing === 'unready') concerns.push('still ends the workers of an earlier generation');
  if (node.standing === 'preparing') concerns.push('prepares');
  if (node.standing === 'spare') concerns.push('waits as a spare');
  return concerns.join('; ');
}

const part = (count, whole) => (whole > 0 ? `${bytes(count)} of ${bytes(whole)}` : bytes(count));
const most = (text, peak) => (peak > 0 ? `${text}, at most ${bytes(peak)}` : text);

/** The share of the last 10 s in which all processes of a node waited for memory. */
const pressureOf = (node) => node.memory_pressure ?? (node.memory_pressure_permille ?? 0) / 1000;

/** [name, text] of one rank. */
export function rankFactsOf(cell) {
  const {told = {}, node} = cell;
  const facts = [['State', STATES[cell.state].word], ['Host', node.hostname || node.node]];
  const add = (name, value, text) => {
    if (value !== undefined && value !== null) facts.push([name, text ?? `${value}`]);
  };
  if (node.node !== node.hostname) add('Node', node.node);
  add('Local rank', cell.local);
  add('pid', told.pid || undefined);
  add('Phase', told.phase, told.phase?.replace('_', ' '));
  add('Now', told.activity, told.activity?.replace('blocked', 'hangs in the kernel'));
  add('Last output', told.output_age_ms, `${duration(told.output_age_ms)} ago`);
  add('Step', told.step, told.step?.toLocaleString('en'));
  add('Steps/s', told.steps_per_s, told.steps_per_s?.toFixed(2));
  add('Last step', told.step_age_ms, `${duration(told.step_age_ms)} ago`);
  add('Own work', told.own_share, `${percent(told.own_share ?? 0)} of its step; it waits for the rest`);
  add('Memory', told.memory_bytes, most(bytes(told.memory_bytes), told.memory_peak_bytes));
  add('GPU use', told.gpu_use, percent(told.gpu_use ?? 0));
  add('GPU memory', told.gpu_memory_bytes, part(told.gpu_memory_bytes, told.gpu_memory_total_bytes));
  add('GPU power', told.gpu_power_w, `${told.gpu_power_w} W`);
  add('Host memory', node.memory_bytes, part(node.memory_bytes, node.memory_limit_bytes));
  add('Waiting for memory', pressureOf(node) || undefined, `${percent(pressureOf(node))} of the time`);
  add('Heard', node.last_heard_ms, `${duration(node.last_heard_ms)} ago`);
  return facts;
}

/** How a worker ended, in words. */
export function endOf(failure) {
  if (failure.hung) return 'hung';
  if (failure.signal) return `died of ${failure.signal_name ?? `signal ${failure.signal}`}${failure.core_dumped ? ', core dumped' : ''}`;
  if (failure.exec_errno) return `could not be started (errno ${failure.exec_errno})`;
  if (failure.keeper_lost) return 'was lost with its keeper';
  return failure.exit_code === undefined ? 'failed' : `exited with code ${failure.exit_code}`;
}

/** A line about an event, beside its kind. */
export function textOf(event) {
  const parts = [];
  const add = (name, text) => text !== undefined && text !== '' && parts.push(`${name}${text}`);
  if (event.event === 'failure') parts.push(endOf(event));
  add('', event.text);
  if (event.event === 'waiting' && !event.text) parts.push('for nothing any more');
  if (event.event === 'quiet') parts.push(event.quiet_ms > 0 ? `no sign of life for ${duration(event.quiet_ms)}` : 'shows signs of life again');
  if (event.event === 'checkpoint_saved') parts.push(saveTextOf(event));
  if (event.event === 'checkpoint_failed') parts.push(event.reason || "the worker's output says why");
  if (event.event === 'checkpoint_behind' && !event.text) parts.push('checkpoints keep up again');
  add('', event.cause && `cause: ${event.cause}`);
  add('', event.nodes !== undefined && event.workers !== undefined ? `${event.nodes} nodes, ${event.workers} workers` : undefined);
  add('', event.kernel);
  add('held up for ', event.ms === undefined ? undefined : duration(event.ms));
  if (event.event === 'operator') add('', `${event.action}${event.by ? `, asked by ${event.by}` : ''}`);
  add('step ', event.step);
  if (event.event === 'verdict') add('exit code ', event.exit_code);
  return parts.join('; ');
}

/** Where the time went, as whoever answers accounts for it. */
export function timeOf({time}) {
  if (!time) return {estimated: false, shares: [], restarts: []};
  const shares = [[time.estimated ? 'at work' : 'training', time.training_ms - (time.redone_ms ?? 0)], ['redone', time.redone_ms],
    ['checkpointing', time.checkpointing_ms ?? 0], ['restarting', time.restarting_ms],
    ['waiting', time.waiting_ms], ['starting', time.starting_ms]];
  return {estimated: time.estimated, shares, restarts: time.restarts ?? []};
}
