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

/// The more it is one's own doing that one gets no further, the later it stands.
constexpr std::array kBlame = {
    std::pair{Activity::Unknown, std::string_view()},
    std::pair{Activity::Waits, std::string_view("wait")},
    std::pair{Activity::Computes, std::string_view("compute")},
    std::pair{Activity::Sleeps, std::string_view("sleep")},
    std::pair{Activity::Blocked,
              std::string_view("hang in the kernel (disk, network file system or driver)")},
    std::pair{Activity::Stopped, std::string_view("stand still (SIGSTOP or a debugger)")},
};

std::size_t blame_of(const RankSeen* rank) {
    const auto found = std::find_if(kBlame.begin(), kBlame.end(), [rank](const auto& entry) {
        return entry.first == rank->told->activity;
    });
    return static_cast<std::size_t>(found - kBlame.begin());
}

/// "sleep", or of one "sleeps".
std::string doing(std::size_t blame, std::size_t count) {
    std::string text(kBlame.at(blame).second);
    if (count == 1) {
        text.insert(std::min(text.find(' '), text.size()), "s");
    }
    return text;
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

template <typename Predicate>
Ranks those(const Ranks& ranks, Predicate predicate) {
    Ranks found;
    std::copy_if(ranks.begin(), ranks.end(), std::back_inserter(found), predicate);
    return found;
}

/// "rank 1 on b", "ranks 1, 3 and 7 more".
std::string names_of(const Ranks& ranks, std::size_t named_max) {
    if (ranks.size() == 1) {
        return fmt::format("rank {} on {}", ranks.front()->rank.value(), ranks.front()->host);
    }
    std::vector<int> named;
    for (std::size_t i = 0; i < std::min(ranks.size(), named_max); ++i) {
        named.push_back(ranks[i]->rank.value());
    }
    const std::string more = ranks.size() > named.size()
                                 ? fmt::format(" and {} more", ranks.size() - named.size())
                                 : std::string();
    return fmt::format("ranks {}{}", fmt::join(named, ", "), more);
}

/// What all of them do; empty: different things, or nobody knows.
std::string common_doing(const Ranks& ranks) {
    const auto is_other = [&](const RankSeen* rank) {
        return blame_of(rank) != blame_of(ranks.front());
    };
    const bool is_one = !ranks.empty() && std::none_of(ranks.begin(), ranks.end(), is_other);
    return is_one ? doing(blame_of(ranks.front()), ranks.size()) : std::string();
}

Milliseconds rounded(Duration time) {
    return std::chrono::duration_cast<Milliseconds>(time);
}

Milliseconds least_age(const RankProgress& rank, const WatchLimits& limits) {
    const auto steps = std::chrono::nanoseconds(rank.step_ns.value_or(0)) * limits.stall_steps;
    return std::max(limits.stall_after, rounded(steps));
}

std::string whole_seconds(Milliseconds time) {
    return fmt::format("{} s", std::chrono::duration_cast<std::chrono::seconds>(time).count());
}

}  // namespace

bool is_stalled(const RankProgress& rank, const WatchLimits& limits) {
    return rank.step_age_ms && Milliseconds(static_cast<Milliseconds::rep>(*rank.step_age_ms)) >=
                                   least_age(rank, limits);
}

Culprit find_culprit(const std::vector<RankSeen>& ranks, const WatchLimits& limits) {
    Culprit culprit;
    const Ranks working = at_work(ranks);
    for (const RankSeen* rank : working) {
        if (rank->told->step) {
            culprit.step = std::min(culprit.step.value_or(*rank->told->step), *rank->told->step);
        }
    }
    const Ranks ahead = those(working, [&](const RankSeen* rank) {
        return rank->told->step.value_or(culprit.step.value_or(0)) > culprit.step.value_or(0);
    });
    Ranks named = those(working, [&](const RankSeen* rank) {
        return ahead.empty() || rank->told->step == culprit.step;
    });
    const auto less = [](const RankSeen* one, const RankSeen* other) {
        return blame_of(one) < blame_of(other);
    };
    const auto worst = std::max_element(named.begin(), named.end(), less);
    const std::size_t blame = worst == named.end() ? 0 : blame_of(*worst);
    named = those(named, [blame](const RankSeen* rank) { return blame_of(rank) == blame; });
    std::string where;
    if (culprit.step) {
        where = !ahead.empty()        ? fmt::format("behind, at step {}", *culprit.step)
                : working.size() == 1 ? fmt::format("at step {}", *culprit.step)
                                      : fmt::format("all at step {}", *culprit.step);
    }
    if (working.size() > 1 && named.size() == working.size()) {
        const std::string all = common_doing(working);
        culprit.text = fmt::format("{}{}{}", where, where.empty() || all.empty() ? "" : ", ",
                                   all.empty() ? "" : "all " + all);
        return culprit;
    }
    if (named.empty() || (ahead.empty() && blame == 0)) {
        culprit.text = where;
        return culprit;
    }
    culprit.rank = named.front()->rank;
    culprit.host = named.front()->host;
    const Ranks others = those(working, [&named](const RankSeen* rank) {
        return std::find(named.begin(), named.end(), rank) == named.end();
    });
    const std::string names = names_of(named, limits.stall_ranks_named);
    const std::string does = doing(blame, named.size());
    const std::string others_do = common_doing(others);
    if (ahead.empty()) {
        culprit.text = fmt::format("{}{}{} {}", where, where.empty() ? "" : ": ", names, does);
    } else {
        culprit.text = fmt::format("{} {} {}{}{}", names, named.size() == 1 ? "is" : "are", where,
                                   blame == 0 ? "" : ", and ", blame == 0 ? "" : does);
    }
    if (!others_do.empty()) {
        culprit.text += fmt::format(", the other{} {}", others.size() == 1 ? "" : "s", others_do);
    }
    return culprit;
}

std::optional<Stall> find_stall(const std::vector<RankSeen>& ranks, const WatchLimits& limits) {
    const Ranks working = at_work(ranks);
    const Ranks telling =
        those(working, [](const RankSeen* rank) { return rank->told->step_age_ms.has_value(); });
    std::optional<Milliseconds> age;
    bool is_stall = !working.empty();
    for (const RankSeen* rank : telling.empty() ? working : telling) {
        const auto& told = telling.empty() ? rank->told->output_age_ms : rank->told->step_age_ms;
        if (!told) {
            continue;
        }
        const Milliseconds own =
            Milliseconds(static_cast<Milliseconds::rep>(*told)) + rounded(rank->ago);
        age = std::min(age.value_or(own), own);
        is_stall = is_stall && own >= (telling.empty() ? limits.stall_output_after
                                                       : least_age(*rank->told, limits));
    }
    const bool all_compute = std::all_of(working.begin(), working.end(), [](const RankSeen* rank) {
        return rank->told->activity == Activity::Computes ||
               rank->told->activity == Activity::Unknown;
    });
    if (!age || !is_stall || (telling.empty() && all_compute)) {
        return std::nullopt;
    }
    Stall stall{.age = *age, .culprit = find_culprit(ranks, limits), .text = {}};
    stall.text =
        fmt::format("no {} for {}{}{}", telling.empty() ? "output" : "step", whole_seconds(*age),
                    stall.culprit.text.empty() ? "" : "; ", stall.culprit.text);
    return stall;
}

}  // namespace ddprun::rdzv
