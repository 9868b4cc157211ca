#include "rendezvous/core/sameness.hpp"

#include <algorithm>
#include <array>
#include <cstddef>

#include <fmt/format.h>

#include "base/planted_bug.hpp"
#include "base/probe.hpp"
#include "rendezvous/core/explain.hpp"
#include "rendezvous/core/run.hpp"
#include "rendezvous/core/step.hpp"

namespace ddprun::rdzv {

namespace {

struct Part {
    std::string_view name;
    std::string Fingerprint::*value;
    std::string_view advice;  ///< what makes all nodes the same
};

constexpr std::array kParts = {
    Part{"program", &Fingerprint::program, "copy the same file to both"},
    Part{"Python", &Fingerprint::python, "use the same Python on both"},
    Part{"torch", &Fingerprint::torch, "install the same version on both"},
    Part{"NCCL", &Fingerprint::nccl, "install the same version on both"},
    Part{"driver", &Fingerprint::driver, "install the same version on both"},
};

const std::string& value_of(const Join& info, const Part& part) {
    return info.fingerprint.*part.value;
}

/// Programs are compared within a role.
bool are_comparable(const Join& left, const Join& right, const Part& part) {
    return part.value != &Fingerprint::program || left.role == right.role;
}

/// The first node here that has a value to compare with.
const Node* counterpart(const Run& run, const Join& join, const Part& part) {
    const auto found = std::find_if(run.nodes.begin(), run.nodes.end(), [&](const auto& entry) {
        const Join& info = entry.second.info;
        return entry.first != join.node && !value_of(info, part).empty() &&
               are_comparable(info, join, part);
    });
    return found == run.nodes.end() ? nullptr : &found->second;
}

/// How the nodes of a generation differ in one part.
struct Difference {
    const Node* first = nullptr;  ///< of its role, with a value
    const Node* other = nullptr;  ///< the first one with another value
    std::size_t more = 0;         ///< that differ from their first one, too
};

Difference find_difference(const Run& run, const Part& part) {
    Difference found;
    std::map<std::string_view, const Node*> firsts;
    for (const Place& place : run.current.places) {
        const Node& node = run.nodes.at(place.node);
        const std::string& value = value_of(node.info, part);
        if (value.empty()) {
            continue;
        }
        const bool by_role = part.value == &Fingerprint::program;
        const Node* const first =
            firsts
                .try_emplace(by_role ? std::string_view(node.info.role) : std::string_view(), &node)
                .first->second;
        if (value_of(first->info, part) == value) {
            continue;
        }
        if (found.other == nullptr) {
            found.first = first;
            found.other = &node;
        } else {
            found.more += 1;
        }
    }
    return found;
}

}  // namespace

std::string objection_as_unlike(const Run& run, const Join& join) {
    const auto known = run.nodes.find(join.node);
    const bool is_of_run = known != run.nodes.end() && join.run_token == run.token &&
                           join.process == known->second.info.process;
    if (DDP_RULE(run.settings.same != Sameness::Strict || is_of_run, UnlikeTaken, true)) {
        return {};
    }
    for (const Part& part : kParts) {
        const std::string& theirs = value_of(join, part);
        const Node* const here = theirs.empty() ? nullptr : counterpart(run, join, part);
        if (here == nullptr || value_of(here->info, part) == theirs) {
            continue;
        }
        DDP_PROBE(unlike_refused);
        return fmt::format(
            "join refused: {} differs: {} has {}, {} has {}, and the job was started with --same "
            "strict; {}, or start all nodes with --same warn",
            part.name, here->info.hostname, value_of(here->info, part), join.hostname, theirs,
            part.advice);
    }
    return {};
}

void tell_differences(Step& step) {
    Run& run = step.run;
    if (DDP_RULE(run.settings.same == Sameness::Off, DifferenceUnsaid, true)) {
        return;
    }
    for (const Part& part : kParts) {
        const Difference found = find_difference(run, part);
        if (found.other == nullptr) {
            continue;
        }
        const std::string& first = value_of(found.first->info, part);
        const std::string& other = value_of(found.other->info, part);
        std::pair<std::string, std::string> values = std::minmax(first, other);
        if (run.differences_told[part.name] == values) {
            continue;
        }
        DDP_PROBE(difference_told);
        run.differences_told[part.name] = std::move(values);
        const std::string text = fmt::format(
            "{} differs: {} has {}, {} has {}{}", part.name, found.first->info.hostname, first,
            found.other->info.hostname, other,
            found.more == 0 ? std::string()
                            : fmt::format(", and {} more differ{} from the first",
                                          node_count(found.more), found.more == 1 ? "s" : ""));
        note(step, text);
        tell_head(step, fmt::format("warning: {}; {}; --same strict refuses this, --same off does "
                                    "not look",
                                    text, part.advice));
    }
}

}  // namespace ddprun::rdzv
