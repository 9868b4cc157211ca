#include "agent/daemon/node_watch.hpp"

#include <chrono>
#include <optional>
#include <utility>

#include <fmt/format.h>

namespace ddprun::agent {

namespace {

Instant in(Milliseconds time) {
    return std::chrono::steady_clock::now() + time;
}

}  // namespace

NodeWatch::NodeWatch(boost::asio::io_context& io, std::string host, Milliseconds hang_notice,
                     const WatchLimits& limits, Ask ask)
    : host_(std::move(host)),
      limits_(limits),
      ask_(std::move(ask)),
      hang_notice_(hang_notice),
      memory_notice_(limits),
      hang_timer_(io, [this] { look_for_hang(); }),
      memory_timer_(io, [this] { look_at_memory(); }) {}

void NodeWatch::begin(Generation generation, Rank base_rank) {
    generation_ = generation;
    base_rank_ = base_rank;
    if (hang_notice_.after() > Milliseconds::zero()) {
        hang_timer_.set(in(hang_notice_.after() / limits_.hang_notice_looks));
    }
    memory_timer_.set(in(limits_.host_memory_look));
}

void NodeWatch::end() {
    hang_timer_.set(std::nullopt);
    memory_timer_.set(std::nullopt);
}

/// It only speaks: what is done about a hang is --hang-timeout's.
void NodeWatch::look_for_hang() {
    if (const std::optional<HangSeen> seen = hang_notice_.look_at_steps(
            std::chrono::steady_clock::now(), generation_, base_rank_, host_, ask_.workers())) {
        tell(*seen);
    }
    if (!hang_notice_.is_said(generation_)) {
        hang_timer_.set(in(hang_notice_.after() / limits_.hang_notice_looks));
    }
}

void NodeWatch::tell(const HangSeen& seen) {
    ask_.say(fmt::format("ddprun: {}; ddpctl stacks shows where it is", seen.text));
    rdzv::Event event{.kind = rdzv::EventKind::HangNotice,
                      .at = std::chrono::steady_clock::now(),
                      .generation = generation_,
                      .rank = seen.rank,
                      .step = seen.step,
                      .fields = {{"text", seen.text}, {"host", seen.host}}};
    if (!seen.collective.empty()) {
        event.fields.push_back({"collective", seen.collective});
    }
    ask_.keep(event);
}

void NodeWatch::look_at_memory() {
    if (const std::optional<std::string> line =
            memory_notice_.look(ask_.progress(), base_rank_, host_)) {
        ask_.say("ddprun: " + *line);
    }
    memory_timer_.set(in(limits_.host_memory_look));
}

}  // namespace ddprun::agent
