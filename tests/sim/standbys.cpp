#include "tests/sim/standbys.hpp"

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>

#include <fmt/format.h>

namespace ddprun::sim {

namespace {

const LocalRank kFirst{0};
constexpr std::uint64_t kBytesOfOne = 100;
constexpr Milliseconds kLearnsWithin{500};
constexpr Milliseconds kWaitsMost{1000};  ///< of one that dies while it waits
const std::string kModule = "torch";
const std::string kLazyModule = "torch.optim";

/// Those that the user names, those that a worker imports, or a program that waits by itself; the
/// memory of some is bounded.
agent::WarmOptions draw_options(Dice& dice, int slots) {
    agent::WarmOptions options{.trial = {"python"}};
    options.learns = dice.chance(1, 2);
    if (options.learns && dice.chance(1, 3)) {
        options.program = kModule;
    }
    if (!options.learns) {
        options.modules = {kModule, kLazyModule};
    } else if (options.program.empty() && dice.chance(1, 3)) {
        options.known = {kModule};
    }
    if (dice.chance(1, 4)) {
        options.memory_max = kBytesOfOne * dice.below(static_cast<std::uint64_t>(slots) + 1);
    }
    return options;
}

}  // namespace

FakeStandbys::FakeStandbys(const Limits& limits, int slots, Dice dice, Shell shell)
    : limits_(limits),
      count_(slots),
      dice_(dice),
      options_(draw_options(dice_, slots)),
      slots_(limits, slots, options_),
      shell_(std::move(shell)) {}

void FakeStandbys::begin() {
    begin(false);
}

void FakeStandbys::begin(bool awaits_first_step) {
    is_first_step_awaited_ = awaits_first_step;
    is_importing_ = false;
    is_paused_ = false;
    began_ = shell_.now();
    slots_.begin(began_);
    excuse();
    expect_one_in_each_slot();
    settle();
}

void FakeStandbys::pause() {
    is_paused_ = true;
    excuse();
    slots_.pause();
}

/// Those that were ready are workers now. Their keeper is that of the generation. It holds the
/// others, too, but no slot has them any more.
void FakeStandbys::start_generation() {
    const std::vector<LocalRank> expected = ready();
    const std::vector<LocalRank> taken = slots_.take();
    if (taken != expected) {
        shell_.violate(
            fmt::format("{} standbys wait, and {} are taken", expected.size(), taken.size()));
    }
    if (!taken.empty()) {
        shell_.trace(fmt::format("{} of {} workers go on from standbys", taken.size(), count_));
        processes_.clear();
    }
    begin(dice_.chance(1, 3));
    if (is_first_step_awaited_ && dice_.chance(3, 4)) {
        shell_.later(dice_.up_to(limits_.standby_after * 3),
                     [this, peace = peace_] { is_first_step_awaited_ &= peace != peace_; });
    }
    if (options_.learns) {
        if (options_.program.empty()) {
            slots_.learn(shell_.now(), LocalRank(0), {"begins " + kModule});
            is_importing_ = true;
        }
        learn(kModule);
        learn(kLazyModule);  // A program reports the same again.
    }
}

/// A worker of the generation imports it, if that still runs.
void FakeStandbys::learn(const std::string& module) {
    shell_.later(dice_.up_to(kLearnsWithin), [this, module, peace = peace_] {
        if (peace == peace_) {
            has_learned_ = true;
            if (options_.program.empty()) {
                slots_.learn(shell_.now(), LocalRank(0), {module});
                is_importing_ = false;
            } else {
                slots_.can_wait(shell_.now());
            }
            settle();
        }
    });
}

std::vector<LocalRank> FakeStandbys::ready() const {
    std::vector<LocalRank> slots;
    for (const auto& [slot, process] : processes_) {
        if (process.is_ready) {
            slots.push_back(slot);
        }
    }
    return slots;
}

void FakeStandbys::settle() {
    const agent::NodeSeen node{.is_first_step_awaited = is_first_step_awaited_};
    for (const agent::StandbyEffect& effect : slots_.settle(shell_.now(), node)) {
        std::visit([this](const auto& one) { carry_out(one); }, effect);
    }
    arm();
}

/// A timer that comes too early, or is not needed any more, decides nothing.
void FakeStandbys::arm() {
    const std::optional<Instant> due = slots_.next_deadline();
    if (due) {
        // By a clock that may be a fifth slower than the true time.
        shell_.later((*due - shell_.now()) * 5 / 4 + Milliseconds(1), [this, due] {
            if (slots_.next_deadline() == due && shell_.now() >= *due) {
                settle();
            }
        });
    }
}

std::uint64_t FakeStandbys::start(LocalRank slot) {
    const bool is_one_prepared =
        std::any_of(processes_.begin(), processes_.end(),
                    [](const auto& entry) { return !entry.second.is_ready; });
    if (is_one_prepared || processes_.contains(slot)) {
        shell_.violate("a standby is prepared beside another");
    }
    if (is_paused_) {
        shell_.violate("a standby is prepared while workers are being stopped");
    }
    if (is_first_step_awaited_ && shell_.now() < began_ + limits_.standby_first_step_max) {
        shell_.violate("a standby is prepared before the first step");
    }
    if (is_importing_ && shell_.now() < began_ + limits_.standby_first_step_max) {
        shell_.violate("a standby is prepared while a worker imports");
    }
    processes_[slot] = Process{.id = ++last_id_, .is_ready = false};
    return last_id_;
}

void FakeStandbys::carry_out(const agent::TryStandby& /*effect*/) {
    if (!options_.program.empty()) {
        shell_.violate("a program is tried that is not Python's");
    }
    const std::uint64_t id = start(kFirst);
    if (!dice_.chance(1, 20)) {
        then(kFirst, id, dice_.up_to(Milliseconds(100)), [this] { slots_.is_here(kFirst); });
    }
    end(kFirst, id, Milliseconds(100) + dice_.up_to(Milliseconds(100)));
}

/// Its file may be another one by now.
bool FakeStandbys::is_program_gone(const agent::PrepareStandby& effect) {
    if (options_.program.empty()) {
        return false;
    }
    if (!has_learned_ || effect.is_rehearsal) {
        shell_.violate("a program is started that has not told that it waits");
    }
    if (!dice_.chance(1, 16)) {
        return false;
    }
    has_learned_ = false;
    slots_.is_another_program(effect.slot);
    shell_.later(Duration{}, [this] { settle(); });
    return true;
}

void FakeStandbys::carry_out(const agent::PrepareStandby& effect) {
    if (is_program_gone(effect)) {
        return;
    }
    const LocalRank slot = effect.slot;
    const std::uint64_t id = start(slot);
    const Duration ready_after = dice_.up_to(limits_.standby_ready_timeout * 5 / 4);
    switch (dice_.below(16)) {
        case 0:
            return;  // It hangs.
        case 1:
        case 2:
            end(slot, id, ready_after);
            return;
        case 3:
            if (dice_.chance(1, 4)) {
                then(slot, id, ready_after,
                     [this, slot] { slots_.is_unfit(slot, kModule, "it starts 1 thread"); });
            }
            end(slot, id, ready_after + Milliseconds(10));
            return;
        case 4:
            shell_.later(ready_after, [this] { lose_keeper(); });
            return;
        case 5:
        case 6:
            end(slot, id, ready_after + dice_.up_to(kWaitsMost));
            break;
        default:
            break;
    }
    if (effect.is_rehearsal) {
        then(slot, id, ready_after, [this, slot] { slots_.is_fit(slot, kBytesOfOne); });
        end(slot, id, ready_after + Milliseconds(10));
        return;
    }
    then(slot, id, ready_after, [this, slot] {
        slots_.is_ready(slot, kBytesOfOne);
        // One that was given up may have become ready meanwhile.
        processes_.at(slot).is_ready = slots_.is_waiting(slot);
    });
}

void FakeStandbys::carry_out(const agent::DiscardStandby& effect) {
    const auto found = processes_.find(effect.slot);
    if (found == processes_.end()) {
        shell_.violate("a standby is killed that is not there");
        return;
    }
    found->second.is_ready = false;
    end(effect.slot, found->second.id, dice_.up_to(Milliseconds(50)));
}

void FakeStandbys::carry_out(const agent::Say& effect) {
    shell_.trace("says: " + effect.text);
}

void FakeStandbys::then(LocalRank slot, std::uint64_t id, Duration delay, const Told& told) {
    shell_.later(delay, [this, slot, id, told] {
        const auto found = processes_.find(slot);
        if (found != processes_.end() && found->second.id == id) {
            told();
            settle();
        }
    });
}

void FakeStandbys::end(LocalRank slot, std::uint64_t id, Duration delay) {
    then(slot, id, delay, [this, slot] {
        processes_.erase(slot);
        slots_.has_ended(slot);
    });
}

void FakeStandbys::lose_keeper() {
    excuse();
    shell_.trace("loses the keeper of its standbys");
    processes_.clear();
    slots_.are_lost();
    settle();
}

/// One that is late, dead or hung is replaced, so often and no more, while nothing is stopped; and
/// one that lacks what was learned.
void FakeStandbys::expect_one_in_each_slot() {
    const Duration each = limits_.standby_ready_timeout + kWaitsMost + Milliseconds(300);
    const int rehearsals = limits_.standby_failures_max + 1;
    const Duration most = limits_.standby_first_step_max + limits_.standby_after * 2 +
                          kLearnsWithin +
                          each * ((2 * limits_.standby_failures_max + 1) * count_ + rehearsals + 1);
    shell_.later(most * 3 / 2, [this, peace = peace_] {
        if (peace != peace_ || slots_.is_off() || options_.memory_max) {
            return;
        }
        for (int i = 0; i < count_; ++i) {
            const LocalRank slot(i);
            const bool is_one_wanted = !options_.learns || has_learned_ || !options_.known.empty();
            const std::string why = slots_.why_not(slot, shell_.now());
            if (is_one_wanted && !processes_.contains(slot) && !why.empty()) {
                shell_.violate(fmt::format("local rank {} has no standby: {}", i, why));
            }
        }
    });
}

}  // namespace ddprun::sim
