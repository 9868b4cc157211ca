#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "base/instant.hpp"
#include "base/tagged.hpp"
#include "rendezvous/wire/messages.hpp"

/// Nodes that keep failing, or are not fit, are left out for a while where others suffice.
namespace ddprun::rdzv {

struct Run;
struct Step;

/// Left out until then, if others suffice.
struct Quarantine {
    Instant until{};
    std::string hostname;
    std::string why;        ///< "began 3 failures within 600 s"
    bool is_unfit = false;  ///< as it said itself
};

void blame(Step& step, const NodeId& id, const std::string& hostname);
/// Nothing happens while the others would not suffice.
void quarantine_if_dispensable(Step& step, const NodeId& id, const std::string& hostname,
                               const std::string& why);
/// For `why`, which a node found wrong with itself. True if that is news.
bool quarantine_unfit(Step& step, const NodeId& id, const std::string& hostname,
                      const std::string& why);
/// Nodes that said so instead of joining: a stranger goes into quarantine, a node of the run that
/// said so itself is lost, and one that has its name from another ddprun stays what it is.
void judge_unfit(Step& step, const std::vector<Unfit>& told);

[[nodiscard]] bool is_quarantined(const Run& run, const NodeId& id, Instant now);
/// Ready nodes that are not in quarantine.
[[nodiscard]] std::size_t healthy_count(const Run& run, Instant now);
/// How many of the ready nodes the next generation may be made of: those in quarantine only if the
/// others do not suffice.
[[nodiscard]] std::size_t usable_count(const Run& run, Instant now);
/// When the next node leaves quarantine.
[[nodiscard]] std::optional<Instant> quarantine_end(const Run& run, Instant now);

}  // namespace ddprun::rdzv
