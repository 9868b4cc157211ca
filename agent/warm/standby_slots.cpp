#include "agent/warm/standby_slots.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <chrono>
#include <utility>

#include <fmt/format.h>

#include "agent/supervise/worker_group.hpp"
#include "base/planted_bug.hpp"
#include "base/take_until.hpp"
#include "worker_runtime/contract/worker_environment.hpp"

namespace ddprun::agent {

namespace {

/// The interfaces are known when the link is; what reads them does so when ranks connect.
constexpr std::array kOfGeneration{
    worker_variable::kRank.key,
    worker_variable::kWorldSize.key,
    worker_variable::kGroupRank.key,
    worker_variable::kGroupWorldSize.key,
    worker_variable::kRoleRank.key,
    worker_variable::kRoleWorldSize.key,
    worker_variable::kMasterAddr.key,
    worker_variable::kMasterPort.key,
    worker_variable::kRestartCount.key,
    worker_variable::kMaxRestarts.key,
    worker_variable::kErrorFile.key,
    worker_variable::kUseAgentStore.key,
    worker_variable::kGeneration.key,
    worker_variable::kLocalAddress.key,
    worker_variable::kMemoryCheckpoints.key,
    worker_variable::kStartReason.key,
    worker_variable::kTargetWorldSize.key,
    worker_variable::kPage.key,
    std::string_view("NCCL_SOCKET_IFNAME"),
    std::string_view("GLOO_SOCKET_IFNAME"),
};

/// `learned ` and a line end, at most.
constexpr std::size_t kOrderLineBytes = 9;

constexpr std::string_view kStopsWord = "stops ";
constexpr std::string_view kBeginsWord = "begins ";
constexpr std::string_view kNotKnown = "-";
constexpr std::string_view kSignsOfStates = "=|:,.*_-";
/// The worker of another slot may be ahead of the first one's by so many modules.
constexpr std::size_t kAheadMax = 1000;

std::map<std::string, std::string> constant_part(const WorkerSpec& worker) {
    std::map<std::string, std::string> variables(worker.environment.begin(),
                                                 worker.environment.end());
    std::erase_if(variables, [](const auto& one) { return is_of_generation(one.first); });
    return variables;
}

}  // namespace

StandbySlots::StandbySlots(const Limits& limits, int slots, WarmOptions options)
    : limits_(limits),
      program_(!options.program.empty() || options.trial.empty() ? options.program
                                                                 : options.trial.front()),
      imports_(!options.program.empty() ? Imports::OwnProgram
               : options.learns         ? Imports::Learning
                                        : Imports::Named),
      phase_(!options.is_on()   ? Phase::Off
             : is_own_program() ? Phase::Tried
                                : Phase::Untried),
      untold_(is_own_program() && !options.needs_room ? Untold::NotDue : Untold::Said),
      memory_max_(options.memory_max),
      slots_(static_cast<std::size_t>(slots)) {
    for (std::string& module : options.modules) {
        modules_.push_back(Import{std::move(module)});
    }
    Told earlier;
    for (const std::string& line : options.known) {
        add(earlier.take(line));
    }
}

StandbySlots::Import StandbySlots::Told::take(std::string_view line) {
    Import import{.name = std::string(take_until(line, ' ')),
                  .found = std::string(take_until(line, ' '))};
    if (!line.empty()) {
        state = line;
    }
    import.state = state;
    return import;
}

void StandbySlots::begin(Instant now) {
    begun_ = now;
    prepare_at_ = now + limits_.standby_after;
    due_before_pause_.reset();
    start_until_ = now + limits_.standby_first_step_max;
    importing_.clear();
    rehearsals_ = 0;
    for (Slot& slot : slots_) {
        slot.renewals = 0;
    }
}

void StandbySlots::pause() {
    if (prepare_at_) {
        due_before_pause_ = std::exchange(prepare_at_, std::nullopt);
    }
}

void StandbySlots::learn(Instant now, LocalRank slot, const std::vector<std::string>& lines) {
    if (is_own_program()) {
        return;  // A Python that it has started sends them.
    }
    for (const std::string& line : lines) {
        has_hook();  // The hook sends these lines.
        if (line.starts_with(kBeginsWord)) {
            begins_import(slot, std::string_view(line).substr(kBeginsWord.size()));
            continue;
        }
        importing_.erase(slot);
        if (line.starts_with(kStopsWord)) {
            stop_learning(slot, std::string_view(line).substr(kStopsWord.size()));
        } else if (learns() && is_told_line(line)) {
            hear(now, slot, line);
        }
    }
}

void StandbySlots::begins_import(LocalRank slot, std::string_view module) {
    if (is_module_name(module)) {
        importing_.insert_or_assign(slot, std::string(module));
    } else {
        importing_.erase(slot);  // It has failed.
    }
}

void StandbySlots::hear(Instant now, LocalRank slot, std::string_view line) {
    Told& told = of_slot_[slot];
    Import import = told.take(line);
    const std::string name = import.name;
    if (slot == LocalRank(0)) {
        forget_known();
        add(import);
        told_.insert(name);
    } else if (told.imports.size() > modules_.size() + kAheadMax) {
        return;
    }
    const Instant due = now + limits_.standby_quiet;
    const bool is_new = told.imports.try_emplace(name, std::move(import)).second;
    if (!is_new || find(name) == modules_.end()) {
        prepare_at_ = prepare_at_ ? std::min(*prepare_at_, due) : prepare_at_;
        return;
    }
    if (slot != LocalRank(0)) {
        forget_modules_of(at(slot));
    }
    told_after_ = now - begun_;
    prepare_at_ = prepare_at_ ? due : prepare_at_;
}

void StandbySlots::stop_learning(LocalRank slot, std::string_view why) {
    const std::string module(take_until(why, ' '));
    if (slot == LocalRank(0) && learns() && !why.empty()) {
        forget_known();
        end_learning();
        say(fmt::format("--warm: {} and what follows it is not imported beforehand: {}", module,
                        why));
    }
}

void StandbySlots::end_learning() {
    if (modules_.empty()) {
        phase_ = Phase::Off;
    } else if (imports_ == Imports::Learning) {
        imports_ = Imports::Learned;
    }
}

/// It is for the same program, but perhaps not for the same arguments. Standbys that are ready with
/// it are replaced.
void StandbySlots::forget_known() {
    if (!told_.empty() || !learns()) {
        return;
    }
    modules_.clear();
    learned_bytes_ = 0;
    rehearsed_ = 0;
    std::for_each(slots_.begin(), slots_.end(), forget_modules_of);
}

void StandbySlots::forget_modules_of(Slot& slot) {
    if (auto* ready = std::get_if<Ready>(&slot.state)) {
        ready->modules = 0;
    } else if (auto* preparing = std::get_if<Preparing>(&slot.state)) {
        preparing->modules = 0;
    }
}

std::vector<StandbySlots::Import>::iterator StandbySlots::find(std::string_view module) {
    return std::find_if(modules_.begin(), modules_.end(),
                        [module](const Import& one) { return one.name == module; });
}

/// One that its own worker has not imported would be there without being asked for. The order is
/// bounded: the rest is imported cold.
std::vector<std::string> StandbySlots::modules_for(LocalRank slot, std::size_t count) const {
    const auto told = of_slot_.find(slot);
    std::vector<std::string> lines;
    std::string state;
    std::size_t bytes = 0;
    for (std::size_t i = 0; i < count; ++i) {
        const Import* import = &modules_.at(i);
        if (told != of_slot_.end()) {
            const auto own = told->second.imports.find(import->name);
            if (own == told->second.imports.end()) {
                continue;
            }
            import = &own->second;
        }
        std::string line = import->name;
        if (import->state != state) {
            state = import->state;
            line += fmt::format(" {} {}", import->found.empty() ? kNotKnown : import->found, state);
        } else if (!import->found.empty()) {
            line += " " + import->found;
        }
        bytes += line.size() + kOrderLineBytes;
        if (bytes > limits_.standby_imports_bytes_max) {
            break;
        }
        lines.push_back(std::move(line));
    }
    return lines;
}

void StandbySlots::can_wait(Instant now) {
    if (!is_own_program() || is_off() || !modules_.empty()) {
        return;
    }
    modules_ = {Import{program_}};
    rehearsed_ = modules_.size();  // Nothing of it runs before it has its place.
    if (prepare_at_) {
        prepare_at_ = now + limits_.standby_quiet;
    }
}

void StandbySlots::is_another_program(LocalRank slot) {
    if (!std::holds_alternative<Preparing>(at(slot).state)) {
        return;
    }
    at(slot).state = None{};
    take_out(modules_.begin(), modules_.end());
    say(
        fmt::format("--warm: the file of {} has changed: it has no standbys until a worker has "
                    "started from the new one",
                    program_));
}

/// Behind those that are known, unless it is one of them.
void StandbySlots::add(Import import) {
    if (!learns() || left_out_.contains(import.name) || find(import.name) != modules_.end()) {
        return;
    }
    learned_bytes_ += import.name.size() + import.found.size() + kOrderLineBytes;
    if (learned_bytes_ > limits_.standby_imports_bytes_max) {
        end_learning();
        return;
    }
    modules_.push_back(std::move(import));
}

void StandbySlots::is_here(LocalRank slot) {
    if (preparing_for(Purpose::Trial, at(slot)) != nullptr) {
        has_hook();
        at(slot).state = Ending{};
    }
}

void StandbySlots::is_fit(LocalRank slot, std::uint64_t memory) {
    if (const Preparing* preparing = preparing_for(Purpose::Rehearsal, at(slot))) {
        rehearsed_ = preparing->modules;
        measured_ = std::max(measured_, memory);
        measured_since_ = begin_of(*preparing);
        at(slot).state = Ending{};
    }
}

void StandbySlots::is_ready(LocalRank slot, std::uint64_t memory) {
    if (const Preparing* preparing = preparing_for(Purpose::Standby, at(slot))) {
        measured_since_ = begin_of(*preparing);
        at(slot).state = Ready{preparing->modules, memory};
        measured_ = std::max(measured_, memory);
    }
}

void StandbySlots::is_unfit(LocalRank slot, const std::string& module, const std::string& why) {
    if (std::holds_alternative<Ready>(at(slot).state)) {
        at(slot).state = Ending{};  // A file that it had imported is another one by now.
        say(fmt::format("--warm: the standby of local rank {} has ended: {} {}", slot.value(),
                        module, why));
        return;
    }
    const auto found = find(module);
    const auto* preparing = std::get_if<Preparing>(&at(slot).state);
    if (preparing != nullptr && preparing->modules == 0) {
        at(slot).state = Ending{};  // Something else has been told since.
        return;
    }
    if (preparing == nullptr || found == modules_.end()) {
        return;  // Its end says the rest.
    }
    if (preparing->purpose == Purpose::Rehearsal) {
        rehearsed_ = modules_.size();  // All modules before `module` are fit.
    }
    at(slot).state = Ending{};
    say(is_own_program()
            ? fmt::format("--warm: {} starts cold: before main() {}", program_, why)
            : fmt::format("--warm: {} and what follows it is not imported beforehand: {}", module,
                          why));
    take_out(found, modules_.end());
    end_learning();
}

void StandbySlots::cannot_import(LocalRank slot, const std::string& module) {
    const auto found = find(module);
    if (std::holds_alternative<Preparing>(at(slot).state) && found != modules_.end()) {
        at(slot).state = Ending{};
        left_out_.insert(module);
        take_out(found, found + 1);
    }
}

/// Those that were rehearsed stay so.
void StandbySlots::take_out(std::vector<Import>::iterator first,
                            std::vector<Import>::iterator last) {
    const auto end_of_rehearsed = modules_.begin() + static_cast<std::ptrdiff_t>(rehearsed_);
    if (first < end_of_rehearsed) {
        rehearsed_ -= static_cast<std::size_t>(std::min(last, end_of_rehearsed) - first);
    }
    modules_.erase(first, last);
}

/// Bounded, as what workers import later may never end.
bool StandbySlots::is_rehearsal_due() const {
    return rehearsed_ < modules_.size() &&
           (rehearsed_ == 0 || rehearsals_ < limits_.standby_failures_max);
}

void StandbySlots::has_ended(LocalRank slot) {
    if (preparing_for(Purpose::Trial, at(slot)) != nullptr) {
        say(
            fmt::format("--warm: workers start cold: {} does not run what ddprun puts before "
                        "PYTHONPATH, as with -I, -E or -S",
                        program_));
        phase_ = Phase::Off;
    } else if (std::holds_alternative<Preparing>(at(slot).state)) {
        fail(slot, "it ended while it was prepared");
    } else if (std::holds_alternative<Ready>(at(slot).state)) {
        fail(slot, "it ended while it waited");
    }
    at(slot).state = DDP_RULE(None{}, DeadStandbyTaken, is_waiting(slot) ? at(slot).state : None{});
}

void StandbySlots::cannot_be_started(const std::string& why) {
    are_lost();
    if (!is_off()) {
        say(fmt::format("--warm: workers start cold: {}", why));
    }
    phase_ = Phase::Off;
}

void StandbySlots::are_lost() {
    for (Slot& slot : slots_) {
        slot.state = None{};
    }
}

void StandbySlots::memory_is_short() {
    prepare_at_.reset();
    due_before_pause_.reset();
    int count = 0;
    for (Slot& slot : slots_) {
        if (std::holds_alternative<Preparing>(slot.state) ||
            std::holds_alternative<Ready>(slot.state)) {
            discard(slot);
            ++count;
        }
    }
    if (count != 0) {
        say(fmt::format("--warm: memory is short: {} standby{} ended", count,
                        count == 1 ? " is" : "s are"));
    }
}

std::uint64_t StandbySlots::memory_of_ready() const {
    std::uint64_t bytes = 0;
    for (const Slot& slot : slots_) {
        if (const auto* ready = std::get_if<Ready>(&slot.state)) {
            bytes += ready->memory;
        }
    }
    return bytes;
}

std::string StandbySlots::no_room(const std::optional<MemoryRoom>& room) const {
    constexpr std::uint64_t kMebibyte = std::uint64_t{1} << 20;
    const std::uint64_t ready = memory_of_ready();
    if (memory_max_ && (ready + measured_ > *memory_max_ || *memory_max_ == 0)) {
        return fmt::format("one takes {} MiB, all may have {} MiB (--warm-memory-max)",
                           measured_ / kMebibyte, *memory_max_ / kMebibyte);
    }
    const std::uint64_t one = measured_ != 0 ? measured_ : limits_.standby_memory_guess;
    const auto reserve = static_cast<std::uint64_t>(limits_.standby_memory_reserve);
    if (!room || room->free >= one + room->total / 100 * reserve) {
        return {};
    }
    return fmt::format(
        "one takes about {} MiB, and {} of {} MiB are free, of which {} % are to stay so; --warm "
        "on prepares them even so",
        one / kMebibyte, room->free / kMebibyte, room->total / kMebibyte, reserve);
}

/// The first of their kind shows only then what it takes.
void StandbySlots::keep_memory_max() {
    const auto last = std::find_if(slots_.rbegin(), slots_.rend(), [](const Slot& slot) {
        return std::holds_alternative<Ready>(slot.state);
    });
    if (memory_max_ && memory_of_ready() > *memory_max_ && last != slots_.rend()) {
        discard(*last);
    }
}

void StandbySlots::discard(Slot& slot) {
    slot.state = Ending{};
    effects_.emplace_back(DiscardStandby{number_of(slot)});
}

void StandbySlots::fail(LocalRank slot, const std::string& why) {
    if (++at(slot).failures == limits_.standby_failures_max) {
        say(fmt::format("--warm: local rank {} has no standby any more: {}, {} times", slot.value(),
                        why, limits_.standby_failures_max));
    }
}

std::vector<LocalRank> StandbySlots::take() {
    untold_ = untold_ == Untold::NotDue ? Untold::Due : untold_;
    std::vector<LocalRank> taken;
    for (std::size_t i = 0; i < slots_.size(); ++i) {
        if (std::holds_alternative<Ready>(slots_[i].state)) {
            taken.emplace_back(static_cast<int>(i));
        }
    }
    if (!taken.empty()) {
        for (Slot& slot : slots_) {
            slot = Slot{.state = None{}, .failures = slot.failures};
        }
        for (const LocalRank slot : taken) {
            at(slot).failures = 0;
        }
    }
    return taken;
}

std::optional<Duration> StandbySlots::imports_take() const {
    return imports_took_ ? imports_took_ : told_after_;
}

std::string StandbySlots::held_up_by(Instant now) const {
    if (!importing_.empty()) {
        return fmt::format("{} was being imported", importing_.begin()->second);
    }
    if (is_start_of_workers(now)) {
        return "the first step comes first";
    }
    if (std::any_of(slots_.begin(), slots_.end(), [](const Slot& one) {
            const auto* preparing = std::get_if<Preparing>(&one.state);
            return preparing != nullptr && preparing->purpose != Purpose::Standby;
        })) {
        return "what it imports was being rehearsed";
    }
    return is_preparing() || now >= due() ? "one is prepared at a time"
                                          : "the workers had only just started";
}

Duration StandbySlots::ready_in(LocalRank slot, Instant now, Duration imports_take) const {
    Duration wait = std::max(due() - now, Duration{});
    bool is_rehearsal_to_come = is_rehearsal_due();
    int to_come = 1;  // imports that no standby has begun
    for (const Slot& one : slots_) {
        const auto* preparing = std::get_if<Preparing>(&one.state);
        if (preparing != nullptr) {
            wait = std::max(begin_of(*preparing) + imports_take - now, Duration{});
            is_rehearsal_to_come &= preparing->purpose != Purpose::Rehearsal;
        }
        const bool is_standby = preparing != nullptr && preparing->purpose == Purpose::Standby;
        if (&one == &at(slot)) {
            to_come -= is_standby ? 1 : 0;
        } else if (number_of(one) < slot && !is_standby) {
            to_come += std::holds_alternative<Ready>(one.state) ? 0 : 1;
        }
    }
    return wait + (to_come + (is_rehearsal_to_come ? 1 : 0)) * imports_take;
}

std::string StandbySlots::why_not(LocalRank slot, Instant now) const {
    if (is_off() || at(slot).failures >= limits_.standby_failures_max) {
        return {};  // It has been said.
    }
    if (modules_.empty() && is_own_program()) {
        return {};
    }
    if (modules_.empty()) {
        return importing_.empty() ? "what it imports is not known yet"
                                  : "what it imports is not known yet: " + held_up_by(now);
    }
    const bool is_imported = preparing_for(Purpose::Standby, at(slot)) != nullptr;
    if (!is_imported && !prepare_at_ && !due_before_pause_) {
        return "memory had no room for its standby";
    }
    const std::optional<Duration> take = imports_take();
    if (!take) {
        return is_imported ? "its standby was not ready yet"
                           : "it had no standby yet: " + held_up_by(now);
    }
    const auto seconds = std::max<std::int64_t>(
        std::chrono::ceil<std::chrono::seconds>(ready_in(slot, now, *take)).count(), 1);
    return is_imported ? fmt::format("its standby's imports needed {} s more", seconds)
                       : fmt::format("its standby needed {} s more: {}", seconds, held_up_by(now));
}

bool StandbySlots::is_preparing() const {
    return std::any_of(slots_.begin(), slots_.end(), [](const Slot& slot) {
        return std::holds_alternative<Preparing>(slot.state) ||
               DDP_RULE(std::holds_alternative<Ending>(slot.state), EndingStandbyForgotten, false);
    });
}

StandbyEffects StandbySlots::settle(Instant now, const NodeSeen& node) {
    is_first_step_awaited_ = node.is_first_step_awaited;
    if (const auto since = std::exchange(measured_since_, std::nullopt)) {
        imports_took_ = now - *since;
    }
    for (std::size_t i = 0; i < slots_.size(); ++i) {
        const LocalRank slot(static_cast<int>(i));
        auto* preparing = std::get_if<Preparing>(&slots_[i].state);
        if (preparing != nullptr && DDP_RULE(now >= preparing->until, LateStandbyAwaited, false)) {
            fail(slot, fmt::format("it was not ready after {} ms",
                                   limits_.standby_ready_timeout.count()));
            discard(slots_[i]);
        }
    }
    keep_memory_max();
    prepare_next(now, node);
    return std::exchange(effects_, {});
}

StandbySlots::Slot* StandbySlots::next_to_renew() {
    const auto found = std::find_if(slots_.begin(), slots_.end(), [this](const Slot& slot) {
        const auto* ready = std::get_if<Ready>(&slot.state);
        return ready != nullptr && ready->modules < modules_wanted() &&
               slot.renewals < limits_.standby_failures_max;
    });
    return found == slots_.end() ? nullptr : &*found;
}

StandbySlots::Slot* StandbySlots::next_to_prepare() {
    const auto found = std::find_if(slots_.begin(), slots_.end(), [this](const Slot& slot) {
        return std::holds_alternative<None>(slot.state) &&
               slot.failures < limits_.standby_failures_max;
    });
    return found == slots_.end() || modules_.empty() ? nullptr : &*found;
}

void StandbySlots::prepare_next(Instant now, const NodeSeen& node) {
    if (is_off() || !prepare_at_ || now < *prepare_at_ || is_preparing()) {
        return;
    }
    if (is_start_of_workers(now)) {
        if (is_first_step_awaited_) {
            prepare_at_ = std::min(now + limits_.standby_quiet, start_until_);
        }
        return;
    }
    const Instant until = now + limits_.standby_ready_timeout;
    if (is_untold()) {
        untold_ = Untold::Said;
        say(fmt::format(
            "--warm: {} has not told that it waits for its place: workers start cold; only Python "
            "and programs that use ddprun::run() have standbys",
            program_));
    } else if (phase_ == Phase::Untried) {
        slots_.front().state = Preparing{.until = until, .purpose = Purpose::Trial};
        effects_.emplace_back(TryStandby{});
    } else if (Slot* missing = next_to_prepare()) {
        if (const std::string why = no_room(node.room); !why.empty()) {
            prepare_at_.reset();
            if (!std::exchange(has_said_no_room_, true)) {
                say(fmt::format("--warm: local rank {} has no standby: {}",
                                number_of(*missing).value(), why));
            }
            return;
        }
        const bool is_rehearsal = is_rehearsal_due();
        const std::size_t count = modules_wanted();
        rehearsals_ += is_rehearsal ? 1 : 0;
        missing->state = Preparing{.until = until,
                                   .modules = count,
                                   .purpose = is_rehearsal ? Purpose::Rehearsal : Purpose::Standby};
        effects_.emplace_back(PrepareStandby{
            .slot = number_of(*missing),
            .modules = modules_for(number_of(*missing), count),
            .is_guess = imports_ == Imports::Learning || imports_ == Imports::Learned,
            .is_rehearsal = is_rehearsal,
            .told = is_rehearsal ? told_ : std::set<std::string>()});
    } else if (Slot* old = next_to_renew()) {
        ++old->renewals;
        discard(*old);
    }
}

std::optional<Instant> StandbySlots::next_deadline() {
    for (const Slot& slot : slots_) {
        if (const auto* preparing = std::get_if<Preparing>(&slot.state)) {
            return preparing->until;  // Standbys are prepared one at a time.
        }
    }
    if (is_off() || is_preparing()) {
        return std::nullopt;
    }
    const bool is_any_missing = is_untold() || phase_ == Phase::Untried ||
                                next_to_prepare() != nullptr || next_to_renew() != nullptr;
    if (!is_any_missing || !prepare_at_) {
        return std::nullopt;
    }
    // The end of an import is told.
    return importing_.empty() ? prepare_at_ : std::max(*prepare_at_, start_until_);
}

std::string name_in(std::string_view line) {
    return std::string(take_until(line, ' '));
}

bool is_told_line(std::string_view line) {
    const std::string_view name = take_until(line, ' ');
    const std::string_view found = take_until(line, ' ');
    return is_module_name(name) &&
           (found == kNotKnown ||
            std::all_of(found.begin(), found.end(),
                        [](unsigned char c) { return std::isxdigit(c) != 0; })) &&
           std::all_of(line.begin(), line.end(), [](unsigned char c) {
               return std::isalnum(c) != 0 ||
                      kSignsOfStates.find(static_cast<char>(c)) != std::string_view::npos;
           });
}

bool is_module_name(std::string_view name) {
    return !name.empty() && name.front() != '.' && name.back() != '.' &&
           std::all_of(name.begin(), name.end(), [](unsigned char c) {
               return std::isalnum(c) != 0 || c == '_' || c == '.';
           });
}

bool is_of_generation(const std::string& variable) {
    return std::find(kOfGeneration.begin(), kOfGeneration.end(), variable) != kOfGeneration.end();
}

std::vector<std::string> variables_of_generation() {
    return {kOfGeneration.begin(), kOfGeneration.end()};
}

std::vector<WorkerSpec> standbys_of(const SupervisorOptions& options) {
    const WorkerGroup nobody(rdzv::Start{}, options.identity.slots);
    std::vector<WorkerSpec> standbys = start_of(nobody, options, {}, {}).workers;
    for (WorkerSpec& standby : standbys) {
        std::erase_if(standby.environment,
                      [](const auto& one) { return is_of_generation(one.first); });
    }
    return standbys;
}

bool can_become(const WorkerSpec& standby, const WorkerSpec& worker) {
    return standby.command == worker.command && standby.cpus == worker.cpus &&
           standby.is_bystander == worker.is_bystander &&
           constant_part(standby) == constant_part(worker);
}

}  // namespace ddprun::agent
