// Keeper and workers, faked.

#include <algorithm>
#include <csignal>
#include <utility>

#include <fmt/format.h>

#include "tests/sim/driver.hpp"

namespace ddprun::sim {

namespace {

rdzv::Evidence exited_with(int code) {
    rdzv::Evidence evidence;
    evidence.exit_code = code;
    return evidence;
}

rdzv::Evidence killed_by(int signal) {
    rdzv::Evidence evidence;
    evidence.signal = signal;
    return evidence;
}

auto worker_of(Machine& machine, std::uint64_t id) {
    return std::find_if(machine.workers.begin(), machine.workers.end(),
                        [id](const FakeWorker& worker) { return worker.id == id; });
}

}  // namespace

Duration Simulation::local_delay(Machine& machine) {
    return machine.dice.up_to(options_.local_delay_max);
}

void Simulation::start_workers(Machine& machine, const agent::StartWorkers& effect) {
    trace(name_of(machine), fmt::format("starts generation {} ranks {}+", effect.generation.value(),
                                        effect.base_rank.value()));
    if (!machine.workers.empty()) {
        checker_.violate("S3", fmt::format("{} starts generation {} beside workers of {}",
                                           name_of(machine), effect.generation.value(),
                                           machine.workers.front().generation.value()));
    }
    judge_environment(machine, effect);
    if (machine.standbys) {
        machine.standbys->start_generation();
    }
    checker_.workers_started(machine.start_digest, effect.base_rank,
                             static_cast<int>(effect.workers.size()), machine.node);
    machine.publish_until = true_time(machine, effect.publish_until);
    for (const agent::WorkerSpec& spec : effect.workers) {
        if (machine.is_keeper_gone) {
            checker_.worker_ended(machine.start_digest,
                                  Rank(effect.base_rank.value() + spec.local_rank.value()), false);
            continue;
        }
        FakeWorker worker;
        worker.id = ++last_worker_;
        worker.generation = effect.generation;
        worker.digest = machine.start_digest;
        worker.rank = Rank(effect.base_rank.value() + spec.local_rank.value());
        worker.local_rank = spec.local_rank;
        worker.ignores_sigterm = machine.dice.percent(options_.sigterm_ignored_percent);
        worker.has_runtime = worker.rank.value() * 37 % 100 < options_.runtime_percent;
        plan_life(machine, worker);
        machine.workers.push_back(worker);
    }
    judge_publishing(machine);
}

Simulation::Course Simulation::course_of(const std::string& digest) const {
    const GenerationTruth* truth = checker_.truth_of(digest);
    if (options_.hang_percent + options_.quiet_percent == 0 || truth == nullptr) {
        return Course::Works;
    }
    std::uint64_t number = 0;
    for (const char c : digest) {
        number = number * 31 + static_cast<unsigned char>(c);
    }
    Dice dice(number, options_.seed);
    const bool hangs = dice.percent(options_.hang_percent);
    const bool waits = dice.percent(options_.quiet_percent);
    if (hangs && truth->decided_at < faults_end_) {
        return Course::Hangs;
    }
    return waits ? Course::WaitsForOne : Course::Works;
}

void Simulation::look_at_workers(Machine& machine, Generation generation) {
    agent::SignsOfLife seen;
    for (const FakeWorker& worker : machine.workers) {
        // At some time since.
        seen.is_busy |= worker.quiet_from > machine.looked_at && !machine.shows_by_gpu;
    }
    machine.looked_at = events_.now();
    later_in_agent(machine, Duration{}, [this, generation, seen](Machine& same) {
        step_agent(same, agent::Looked{.generation = generation, .seen = seen});
    });
}

void Simulation::look_at_gpus(Machine& machine, const agent::LookAtGpus& effect) {
    agent::GpusLooked looked{.generation = effect.generation};
    for (const FakeWorker& worker : machine.workers) {
        looked.are_used |=
            machine.shows_by_gpu && worker.quiet_from > events_.now() - effect.quiet_for;
    }
    later_in_agent(machine, local_delay(machine),
                   [this, looked](Machine& same) { step_agent(same, looked); });
}

void Simulation::save_stacks(Machine& machine, Generation generation) {
    trace(name_of(machine), fmt::format("saves the stacks of generation {}", generation.value()));
    later_in_agent(
        machine, machine.dice.up_to(options_.limits.stacks_timeout),
        [this, generation](Machine& same) { step_agent(same, agent::StacksSaved{generation}); });
}

void Simulation::plan_life(Machine& machine, FakeWorker& worker) {
    const std::uint64_t id = worker.id;
    if (std::exchange(machine.fails_to_execute, false)) {
        later(machine, local_delay(machine), [this, id](Machine& same) {
            rdzv::Evidence evidence;
            evidence.exec_errno = 2;
            end_worker(same, id, evidence);
        });
        return;
    }
    const Course course = course_of(worker.digest);
    if (course == Course::Hangs) {
        worker.quiet_from = events_.now() + machine.dice.up_to(options_.work_max);
        return;
    }
    if (course == Course::WaitsForOne && worker.rank.value() > 0) {
        worker.quiet_from = events_.now();
    }
    const Duration work =
        options_.work_min + machine.dice.up_to(options_.work_max - options_.work_min);
    later(machine, work, [this, id](Machine& same) { end_worker(same, id, exited_with(0)); });
}

void Simulation::end_worker(Machine& machine, std::uint64_t id, rdzv::Evidence evidence) {
    const auto found = worker_of(machine, id);
    if (found == machine.workers.end() || found->is_dying) {
        return;
    }
    if (dies_slowly(*found, evidence)) {
        begin_to_die(machine, *found, evidence);
    } else {
        bury_worker(machine, id, std::move(evidence));
    }
}

bool Simulation::dies_slowly(const FakeWorker& worker, const rdzv::Evidence& evidence) const {
    return !worker.was_signalled && evidence.exit_code != 0 && !evidence.exec_errno &&
           Dice(worker.id, options_.seed).percent(options_.slow_death_percent);
}

/// Its agent knows of it now, and its process is gone later.
void Simulation::begin_to_die(Machine& machine, FakeWorker& worker,
                              const rdzv::Evidence& evidence) {
    Dice dice(worker.id, options_.seed + 1);
    worker.is_dying = true;
    checker_.worker_ended(worker.digest, worker.rank, false);
    trace(name_of(machine), fmt::format("rank {} of generation {} is dying", worker.rank.value(),
                                        worker.generation.value()));
    later_in_agent(machine, dice.up_to(options_.local_delay_max),
                   [this, generation = worker.generation, local_rank = worker.local_rank,
                    evidence](Machine& same) {
                       step_agent(same, agent::WorkerDying{generation, local_rank, evidence});
                   });
    later(machine, dice.up_to(Milliseconds(10000)),
          [this, id = worker.id, evidence](Machine& same) {
              last_fault_at_ = events_.now();  // until then it was under way
              bury_worker(same, id, evidence);
          });
}

void Simulation::bury_worker(Machine& machine, std::uint64_t id, rdzv::Evidence evidence) {
    const auto found = worker_of(machine, id);
    if (found == machine.workers.end()) {
        return;
    }
    const FakeWorker worker = *found;
    machine.workers.erase(found);
    const bool is_zero = evidence.exit_code == 0;
    trace(name_of(machine),
          fmt::format("rank {} of generation {} ends: code {} signal {}", worker.rank.value(),
                      worker.generation.value(), evidence.exit_code.value_or(-1),
                      evidence.signal.value_or(-1)));
    checker_.worker_ended(worker.digest, worker.rank, is_zero && !worker.was_signalled);
    keeper_says(machine, agent::WorkerExited{.generation = worker.generation,
                                             .local_rank = worker.local_rank,
                                             .evidence = std::move(evidence)});
}

void Simulation::ask_workers(Machine& machine, const agent::AskWorkersToLeave& effect) {
    trace(name_of(machine), fmt::format("asks generation {} to leave", effect.generation.value()));
    for (FakeWorker& worker : machine.workers) {
        if (worker.generation == effect.generation && worker.has_runtime) {
            end_stopped_worker(machine, worker, exited_with(75));
        }
    }
}

void Simulation::signal_workers(Machine& machine, const agent::SignalWorkers& effect) {
    trace(name_of(machine),
          fmt::format("signals generation {} with {}", effect.generation.value(), effect.signal));
    if (machine.standbys && !machine.workers.empty()) {
        machine.standbys->pause();
    }
    for (FakeWorker& worker : machine.workers) {
        const bool is_spared = effect.spares_asked && worker.has_runtime;
        if (worker.generation != effect.generation || is_spared) {
            continue;
        }
        const bool is_zero = machine.dice.percent(options_.sigterm_exits_zero_percent);
        end_stopped_worker(machine, worker, is_zero ? exited_with(0) : killed_by(effect.signal));
    }
}

void Simulation::end_stopped_worker(Machine& machine, FakeWorker& worker, rdzv::Evidence evidence) {
    worker.was_signalled = true;
    if (worker.ignores_sigterm || worker.is_dying) {
        return;
    }
    later(machine, machine.dice.up_to(Milliseconds(500)),
          [this, id = worker.id, evidence = std::move(evidence)](Machine& same) {
              end_worker(same, id, evidence);
          });
}

/// Some disks take their time.
void Simulation::collect_last_words(Machine& machine, const agent::CollectLastWords& effect) {
    Dice dice(options_.seed, effect.generation.value() * 1000 +
                                 static_cast<std::uint64_t>(effect.local_rank.value()));
    const bool is_slow = has_faults() && dice.percent(10);
    const Duration delay =
        is_slow ? dice.up_to(options_.limits.evidence_timeout) : Duration::zero();
    agent::LastWords words{effect.generation, effect.local_rank, "last \xff words\n", {}};
    later_in_agent(machine, delay,
                   [this, words = std::move(words)](Machine& same) { step_agent(same, words); });
}

void Simulation::empty_generation(Machine& machine, Generation generation) {
    trace(name_of(machine), fmt::format("empties generation {}", generation.value()));
    if (machine.standbys) {
        machine.standbys->pause();
    }
    const bool is_unkillable = has_faults() && machine.dice.percent(options_.unkillable_percent);
    const Duration delay = local_delay(machine);
    if (machine.is_keeper_gone) {
        return;
    }
    const std::uint64_t keeper = machine.keeper;
    later(machine, delay, [this, generation, is_unkillable, keeper](Machine& same) {
        if (same.keeper != keeper || same.is_keeper_gone) {
            return;
        }
        if (is_unkillable && !same.workers.empty()) {
            keeper_says(same, agent::NotEmptied{.generation = generation, .what = "a worker"});
            return;
        }
        drop_workers(same);
        keeper_says(same, agent::Emptied{generation});
    });
}

/// They are gone, and no process reports how.
void Simulation::drop_workers(Machine& machine) {
    for (const FakeWorker& worker : machine.workers) {
        checker_.worker_ended(worker.digest, worker.rank, false);
    }
    machine.workers.clear();
}

/// A collective operation fails at those who wait for one that is gone.
void Simulation::disappoint_peers(const std::string& digest) {
    for (Machine& machine : machines_) {
        for (const FakeWorker& worker : machine.workers) {
            if (worker.digest != digest || !machine.dice.percent(options_.collateral_percent)) {
                continue;
            }
            later(machine, machine.dice.up_to(Milliseconds(300)),
                  [this, id = worker.id](Machine& same) { end_worker(same, id, exited_with(1)); });
        }
    }
}

void Simulation::keeper_says(Machine& machine, agent::Input input) {
    machine.keeper_last = std::max(machine.keeper_last, events_.now() + local_delay(machine));
    const bool is_of_next = std::holds_alternative<agent::KeeperLost>(input);
    const bool is_empty = std::holds_alternative<agent::Emptied>(input);
    later_in_agent(machine, machine.keeper_last - events_.now(),
                   [this, is_of_next, is_empty, input = std::move(input)](Machine& same) {
                       same.is_keeper_gone = same.is_keeper_gone && !is_of_next;
                       if (is_empty && same.standbys) {
                           same.standbys->begin();
                       }
                       step_agent(same, input);
                   });
}

}  // namespace ddprun::sim
