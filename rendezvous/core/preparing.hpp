#pragma once

#include <optional>

#include "base/tagged.hpp"
#include "rendezvous/wire/messages.hpp"

namespace ddprun::rdzv {

class Node;
struct Run;
struct Step;

/// Preparation that the job needs once, before its first workers. The record says that it is done;
/// a node that runs it says so itself to the next rendezvous.
struct Preparation {
    std::optional<NodeId> by;  ///< runs the job's command; none: no node does
    bool is_done = false;
};

/// Commands that run before workers. While nodes prepare, no deadline of Forming passes: a download
/// may take any time.

/// The job's command has run, or it is too late for it: a generation has. From then on there is
/// something that a daemon after this one has to know, and the run is recorded.
[[nodiscard]] bool is_job_prepared(const Run& run);

/// `info` says that a command of its own has to end, even while another node runs one.
[[nodiscard]] inline bool is_own_to_end(const Join& info) {
    return info.prepares == Prepares::Node || info.prepares == Prepares::JobHere;
}

/// `info` names something that has to be done before its node can have workers.
[[nodiscard]] bool has_to_prepare(const Run& run, const Join& info);

/// `node`, which prepares, has joined, perhaps again: it is told to, if it is to.
void ask_to_prepare(Step& step, Node& node);

/// `node`, which prepares, has done it. If that was the job's command, by whomever it was asked,
/// all that wait for it are ready.
void prepared(Step& step, Node& node, const Stopped& message);

/// `node` has joined and need not prepare: if it is the one that did so for the job, it has.
void joined_prepared(Step& step, const Node& node);

/// `node` could not, and is about to go: unless a generation has run, the job ends with it.
void preparing_failed(Step& step, const Node& node, const Goodbye& message);

/// After any input: if no node runs the job's command any more, another node does; once a
/// generation has started, no node waits for it.
void choose_preparer(Step& step);

/// The run waits for a node that prepares.
[[nodiscard]] bool is_preparing(const Run& run);

}  // namespace ddprun::rdzv
