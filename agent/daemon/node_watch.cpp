#include "agent/daemon/node_watch.hpp"

#include <chrono>
#include <cstdlib>
#include <optional>
#include <utility>

#include <boost/asio/post.hpp>
#include <fmt/format.h>

namespace ddprun::agent {

namespace {

Instant in(Milliseconds time) {
    return std::chrono::steady_clock::now() + time;
}

}  // namespace

NodeWatch::NodeWatch(boost::asio::io_context& io, std::string host, Milliseconds hang_notice,
                     const WatchLimits& limits, const AgentView& agent, const WatchMeans& means,
                     Ask ask)
    : io_(io),
      host_(std::move(host)),
      limits_(limits),
      agent_(agent),
      means_(means),
      ask_(std::move(ask)),
      hang_notice_(hang_notice),
      memory_notice_(limits),
      hang_timer_(io, [this] { look_for_hang(); }),
      gpu_power_(limits),
      ras_client_(io, limits),
      gpu_busy_(limits),
      memory_timer_(io, [this] { look_at_memory(); }),
      busy_timer_(io, [this] {
          is_busy_look_due_ = true;
          look_at_gpus();
      }) {
    const char* address = std::getenv("NCCL_RAS_ADDR");
    ras_endpoint_ =
        ras_endpoint(address == nullptr ? std::nullopt : std::optional<std::string>(address));
}

void NodeWatch::begin(Generation generation, Rank base_rank, int world_size) {
    generation_ = generation;
    base_rank_ = base_rank;
    world_size_ = world_size;
    store_silence_.begin();
    gpu_power_.begin();
    ras_watch_.begin();
    gpus_.clear();
    if (hang_notice_.after() > Milliseconds::zero()) {
        hang_timer_.set(in(hang_notice_.after() / limits_.hang_notice_looks));
    }
    memory_timer_.set(in(limits_.host_memory_look));
    if (means_.gpus != nullptr && gpu_busy_) {
        busy_timer_.set(in(limits_.gpu_busy_after / limits_.gpu_busy_looks));
    }
}

void NodeWatch::end() {
    hang_timer_.set(std::nullopt);
    memory_timer_.set(std::nullopt);
    busy_timer_.set(std::nullopt);
    is_busy_look_due_ = false;
    ras_client_.cancel();
}

/// It only speaks: what is done about a hang is --hang-timeout's.
void NodeWatch::look_for_hang() {
    const Instant now = std::chrono::steady_clock::now();
    tell_of_node(hang_notice_.look_at_steps(now, generation_, base_rank_, host_, ask_.workers()));
    if (hang_notice_.is_said(generation_)) {
        return;
    }
    hang_timer_.set(in(hang_notice_.after() / limits_.hang_notice_looks));
    // Signs of the whole job: one node looks.
    const bool is_first = base_rank_ == Rank(0);
    if (is_first && store_silence_.is_silent(now, hang_notice_.after(), agent_.store.requests())) {
        means_.store.ask_who_waits([this, generation = generation_](const rdzv::StoreWaits& waits) {
            // On the store's thread.
            boost::asio::post(io_, [=, this] { take_store_waits(generation, waits); });
        });
    }
    if (means_.gpus == nullptr) {
        return;
    }
    look_at_gpus();
    if (is_first && ras_endpoint_) {
        ras_client_.ask(*ras_endpoint_,
                        [this](std::optional<std::string> answer) { take_ras(std::move(answer)); });
    }
}

void NodeWatch::take_store_waits(Generation generation, const rdzv::StoreWaits& waits) {
    if (generation == generation_) {
        tell_of_job(
            hang_notice_.take(std::chrono::steady_clock::now(), generation_, ask_.workers(),
                              StoreSilence::seen(hang_notice_.after(), world_size_, host_, waits)));
    }
}

void NodeWatch::take_ras(std::optional<std::string> answer) {
    const auto status = answer ? ras_status_from(*answer) : std::nullopt;
    if (status) {
        const Instant now = std::chrono::steady_clock::now();
        tell_of_job(
            hang_notice_.take(now, generation_, ask_.workers(),
                              ras_watch_.look(now, hang_notice_.after(), world_size_, *status)));
    }
}

void NodeWatch::look_at_gpus() {
    if (means_.gpus == nullptr || std::exchange(is_looking_at_gpus_, true)) {
        return;
    }
    std::string question = "figures";
    for (const int pid : agent_.pids()) {
        question += fmt::format(" {}", pid);
    }
    means_.gpus->ask(question, limits_.gpu_figures_timeout, [this](const auto& answer) {
        is_looking_at_gpus_ = false;
        const auto gpus = answer ? gpu_figures_from(*answer) : std::nullopt;
        if (std::exchange(is_busy_look_due_, false)) {
            count_busy(gpus);
        }
        if (gpus) {
            take_gpus(*gpus);
        }
    });
}

void NodeWatch::take_gpus(const AllGpuFigures& gpus) {
    gpus_ = gpus;
    const Instant now = std::chrono::steady_clock::now();
    gpu_power_.add(now, gpus_);
    if (hang_notice_.after() > Milliseconds::zero() &&
        gpu_power_.waits(now, hang_notice_.after())) {
        tell_of_node(hang_notice_.take(now, generation_, ask_.workers(),
                                       gpu_power_.seen(hang_notice_.after(), base_rank_, host_)));
    }
}

/// A driver that does not answer counts as a look: there is a line, or none, after the last one.
void NodeWatch::count_busy(const std::optional<AllGpuFigures>& gpus) {
    if (gpus) {
        gpu_busy_->add(*gpus);
    }
    if (++busy_looks_ < limits_.gpu_busy_looks) {
        busy_timer_.set(in(limits_.gpu_busy_after / limits_.gpu_busy_looks));
        return;
    }
    if (const std::optional<std::string> line = gpu_busy_->line(base_rank_, host_)) {
        ask_.say("ddprun: " + *line);
    }
    gpu_busy_.reset();
}

/// The rendezvous waits for the other nodes' looks.
void NodeWatch::tell_of_node(std::optional<HangSeen> seen) {
    if (seen) {
        seen->looks_every = hang_notice_.after() / limits_.hang_notice_looks;
    }
    tell_of_job(seen);
}

void NodeWatch::tell_of_job(const std::optional<HangSeen>& seen) {
    if (seen) {
        ask_.say(fmt::format("ddprun: {}; ddpctl stacks shows where it is", seen->text));
        ask_.on_hang(*seen);
    }
}

void NodeWatch::look_at_memory() {
    if (const std::optional<std::string> line =
            memory_notice_.look(ask_.progress(), base_rank_, host_)) {
        ask_.say("ddprun: " + *line);
    }
    memory_timer_.set(in(limits_.host_memory_look));
}

}  // namespace ddprun::agent
