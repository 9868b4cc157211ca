#include "rendezvous/events/stall.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <iterator>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace ddprun::rdzv {

namespace {

using Ranks = std::vector<const RankSeen*>;

/// The more certain it is that others wait for a rank and not it for them, the later it stands.
constexpr std::array kBlame = {
    std::pair{Activity::Unknown, std::string_view()},
    std::pair{Activity::Waits, std::string_view("wait")},
    std::pair{Activity::WaitsForStore, std::string_view("wait for the workers' store")},
    std::pair{Activity::Computes, std::string_view("compute")},
    std::pair{Activity::Sleeps, std::string_view("sleep")},
    std::pair{Activity::Blocked,
              std::string_view("hang in the kernel (disk, network file system or driver)")},
    std::pair{Activity::Stopped, std::string_view("stand still (SIGSTOP or a debugger)")},
};
constexpr std::size_t kWaitsForStore = 2;
constexpr std::size_t kComputes = 3;

std::size_t blame_of(const RankSeen* rank) {
    const auto found = std::find_if(kBlame.begin(), kBlame.end(), [rank](const auto& entry) {
        return entry.first == rank->told->activity;
    });
    return static_cast<std::size_t>(found - kBlame.begin());
}

/// "sleep", or of one "sleeps"; empty: not known.
std::string doing(std::size_t blame, std::size_t count) {
    std::string text(kBlame.at(blame).second);
    if (count == 1 && !text.empty()) {
        text.insert(std::min(text.find(' '), text.size()), "s");
    }
    return text;
}

template <typename Predicate>
Ranks those(const Ranks& ranks, Predicate predicate) {
    Ranks found;
    std::copy_if(ranks.begin(), ranks.end(), std::back_inserter(found), predicate);
    return found;
}

Ranks at_work(const std::vector<RankSeen>& ranks) {
    Ranks found;
    for (const RankSeen& rank : ranks) {
        if (rank.told->phase != RankPhase::Finished && rank.told->phase != RankPhase::Failed) {
            found.push_back(&rank);
        }
    }
    return found;
}

std::optional<std::uint64_t> least_step(const Ranks& ranks) {
    std::optional<std::uint64_t> least;
    for (const RankSeen* rank : ranks) {
        if (rank->told->step) {
            least = std::min(least.value_or(*rank->told->step), *rank->told->step);
        }
    }
    return least;
}

/// Those at that step, if others are further.
Ranks those_behind(const Ranks& ranks, const std::optional<std::uint64_t>& least) {
    const bool is_one_ahead = std::any_of(
        ranks.begin(), ranks.end(), [&](const RankSeen* rank) { return rank->told->step > least; });
    return is_one_ahead
               ? those(ranks, [&](const RankSeen* rank) { return rank->told->step == least; })
               : Ranks();
}

/// The ranks, all equally far, for which the others wait; empty: it is not known which.
Ranks those_to_blame(const Ranks& ranks) {
    std::size_t blame = 0;
    for (const RankSeen* rank : ranks) {
        blame = std::max(blame, blame_of(rank));
    }
    Ranks blamed = those(ranks, [blame](const RankSeen* rank) { return blame_of(rank) == blame; });
    const bool has_gpus = std::any_of(ranks.begin(), ranks.end(), [](const RankSeen* rank) {
        return rank->told->gpu_permille.has_value();
    });
    const bool is_certain =
        blame != kComputes ? blame >= kWaitsForStore : blamed.size() == 1 && !has_gpus;
    const bool stand_out = ranks.size() == 1 || blamed.size() < ranks.size();
    return is_certain && stand_out ? blamed : Ranks();
}

/// "rank 1 on b", "ranks 1, 3 on b", "ranks 1, 3, 4, 7 and 12 more".
std::string names_of(const Ranks& ranks, std::size_t named_max) {
    std::vector<int> named;
    for (std::size_t i = 0; i < std::min(ranks.size(), named_max); ++i) {
        named.push_back(ranks[i]->rank.value());
    }
    std::string text =
        fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", fmt::join(named, ", "));
    if (ranks.size() > named.size()) {
        text += fmt::format(" and {} more", ranks.size() - named.size());
    }
    const bool are_together = std::all_of(ranks.begin(), ranks.end(), [&](const RankSeen* rank) {
        return rank->host == ranks.front()->host;
    });
    return are_together ? fmt::format("{} on {}", text, ranks.front()->host) : text;
}

/// "all wait"; "rank 3 on b waits, 7 compute".
std::string activities_of(const Ranks& ranks) {
    std::vector<std::string> parts;
    for (std::size_t blame = 1; blame < kBlame.size(); ++blame) {
        const Ranks same =
            those(ranks, [blame](const RankSeen* rank) { return blame_of(rank) == blame; });
        if (same.empty()) {
            continue;
        }
        const std::string who = same.size() == ranks.size() && ranks.size() > 1 ? "all"
                                : same.size() == 1                              ? names_of(same, 1)
                                                   : std::to_string(same.size());
        parts.push_back(fmt::format("{} {}", who, doing(blame, same.size())));
    }
    return fmt::format("{}", fmt::join(parts, ", "));
}

/// The activity of the ranks that are not named, if all do the same: ", the others wait".
std::string others_text(const Ranks& others) {
    const auto is_other = [&](const RankSeen* rank) {
        return blame_of(rank) != blame_of(others.front());
    };
    if (others.empty() || std::any_of(others.begin(), others.end(), is_other)) {
        return {};
    }
    const std::string does = doing(blame_of(others.front()), others.size());
    return does.empty() ? "" : fmt::format(", the other{} {}", others.size() == 1 ? "" : "s", does);
}

std::string common_step_text(const Ranks& ranks, const std::optional<std::uint64_t>& step) {
    if (!step) {
        return {};
    }
    const bool have_all = std::all_of(ranks.begin(), ranks.end(), [](const RankSeen* rank) {
        return rank->told->step.has_value();
    });
    return fmt::format("{}at step {}", have_all && ranks.size() > 1 ? "all " : "", *step);
}

std::string joined(const std::string& one, std::string_view between, const std::string& other) {
    return one.empty() || other.empty() ? one + other : fmt::format("{}{}{}", one, between, other);
}

Milliseconds from_wire(std::uint64_t milliseconds) {
    return Milliseconds(static_cast<Milliseconds::rep>(milliseconds));
}

}  // namespace

bool is_stalled(Duration age, const std::optional<Duration>& step, const WatchLimits& limits) {
    return step ? age >= limits.stall_after && age >= *step * limits.stall_steps
                : age >= limits.stall_unpaced_after;
}

bool is_stalled(const RankProgress& rank, const WatchLimits& limits) {
    const auto step = rank.step_ns ? std::optional<Duration>(std::chrono::nanoseconds(
                                         static_cast<std::int64_t>(*rank.step_ns)))
                                   : std::nullopt;
    return rank.step_age_ms && is_stalled(from_wire(*rank.step_age_ms), step, limits);
}

Culprit find_culprit(const std::vector<RankSeen>& ranks, const WatchLimits& limits) {
    const Ranks working = at_work(ranks);
    Culprit culprit;
    culprit.step = least_step(working);
    const Ranks behind = those_behind(working, culprit.step);
    Ranks named = those_to_blame(behind.empty() ? working : behind);
    if (named.empty()) {
        named = behind;
    }
    if (named.empty()) {
        culprit.text =
            joined(common_step_text(working, culprit.step), ": ", activities_of(working));
        return culprit;
    }
    culprit.rank = named.front()->rank;
    culprit.host = named.front()->host;
    const std::size_t blame = blame_of(named.front());
    const bool is_one_thing =
        std::all_of(named.begin(), named.end(),
                    [blame](const RankSeen* rank) { return blame_of(rank) == blame; });
    const std::string does = is_one_thing ? doing(blame, named.size()) : std::string();
    const std::string names = names_of(named, limits.stall_ranks_named);
    if (behind.empty()) {
        culprit.text = joined(common_step_text(working, culprit.step), ": ", names + " " + does);
    } else {
        culprit.text = joined(fmt::format("{} {} behind, at step {}", names,
                                          named.size() == 1 ? "is" : "are", *culprit.step),
                              ", and ", does);
    }
    // Both are in the order of `ranks`.
    Ranks others;
    std::set_difference(working.begin(), working.end(), named.begin(), named.end(),
                        std::back_inserter(others));
    culprit.text += others_text(others);
    return culprit;
}

std::optional<Stall> find_stall(const std::vector<RankSeen>& ranks, const WatchLimits& limits) {
    const Ranks working = at_work(ranks);
    const Ranks telling =
        those(working, [](const RankSeen* rank) { return rank->told->step_age_ms.has_value(); });
    const bool tell_steps = !telling.empty();
    std::optional<Milliseconds> age;
    for (const RankSeen* rank : tell_steps ? telling : working) {
        const RankProgress& told = *rank->told;
        const auto& wire_age = tell_steps ? told.step_age_ms : told.output_age_ms;
        if (!wire_age) {
            continue;
        }
        const Milliseconds then = from_wire(*wire_age);
        if (tell_steps ? !is_stalled(told, limits) : then < limits.stall_output_after) {
            return std::nullopt;
        }
        const Milliseconds now = then + std::chrono::duration_cast<Milliseconds>(rank->ago);
        age = std::min(age.value_or(now), now);
    }
    const bool may_compute = std::all_of(working.begin(), working.end(), [](const RankSeen* rank) {
        return rank->told->activity == Activity::Computes ||
               rank->told->activity == Activity::Unknown;
    });
    if (!age || (!tell_steps && may_compute)) {
        return std::nullopt;
    }
    Stall stall{.age = *age, .culprit = find_culprit(ranks, limits), .text = {}};
    stall.text = joined(fmt::format("no {} for {} s", tell_steps ? "step" : "output",
                                    std::chrono::duration_cast<std::chrono::seconds>(*age).count()),
                        "; ", stall.culprit.text);
    return stall;
}

}  // namespace ddprun::rdzv
