#include "launcher/run/local_link.hpp"

#include <optional>
#include <utility>
#include <variant>

#include <boost/asio/post.hpp>

#include "base/os/unix_time.hpp"

namespace ddprun::launcher {

namespace {

const ConnectionId kOnlyConnection{1};

rdzv::HostOptions host_options(const Limits& limits) {
    rdzv::HostOptions options;
    options.coordinator.limits = limits;
    options.coordinator.has_leases = false;
    return options;
}

}  // namespace

LocalLink::LocalLink(boost::asio::io_context& io, JobId job, Limits limits, Rng rng)
    : io_(io),
      timer_(io, [this] { wake_up(); }),
      host_(std::move(job), host_options(limits), rng) {}

void LocalLink::start(rdzv::LinkEvents events) {
    events_ = std::move(events);
    is_running_ = true;
    boost::asio::post(io_, [this] {
        if (is_running_) {
            events_.on_up("127.0.0.1", {});
        }
    });
}

void LocalLink::send(const rdzv::AgentMessage& message) {
    if (is_running_) {
        rdzv::HostEffects wanted;
        host_.step(clock_now(), rdzv::Received{kOnlyConnection, message}, wanted);
        carry_out(wanted);
    }
}

void LocalLink::obey(const rdzv::OperatorOrder& order, const std::string& from,
                     OrderAnswer answer) {
    rdzv::OperatorReply reply{.fault = rdzv::OrderFault::Conflict,
                              .event = 0,
                              .text = "the job has not begun yet: ask again"};
    std::optional<rdzv::Event> record;
    if (is_running_) {
        rdzv::HostEffects wanted;
        host_.step(clock_now(), rdzv::OrderGiven{.number = 1, .order = order, .from = from},
                   wanted);
        for (const rdzv::Effect& effect : wanted.now) {
            const auto* published = std::get_if<rdzv::Publish>(&effect);
            if (published != nullptr && published->event.kind == rdzv::EventKind::Operator) {
                record = published->event;
            } else if (const auto* ordered = std::get_if<rdzv::Ordered>(&effect)) {
                reply = ordered->reply;
            }
        }
        carry_out(wanted);
    }
    boost::asio::post(io_, [reply = std::move(reply), record = std::move(record),
                            answer = std::move(answer)] { answer(reply, record); });
}

void LocalLink::drop(const std::string& /*why*/) {
    // Nothing to end: the coordinator is in this process, and no beats are wanted.
}

void LocalLink::stop(std::function<void()> done) {
    is_running_ = false;
    timer_.set({});
    boost::asio::post(io_, std::move(done));
}

void LocalLink::carry_out(const rdzv::HostEffects& wanted) {
    for (const rdzv::Effect& effect : wanted.now) {
        const rdzv::Send* send = std::get_if<rdzv::Send>(&effect);
        if (send == nullptr) {
            continue;
        }
        boost::asio::post(io_, [this, message = send->message]() mutable {
            if (is_running_) {
                events_.on_message(std::move(message));
            }
        });
    }
    if (wanted.timer) {
        timer_.set(wanted.timer);
    }
}

void LocalLink::wake_up() {
    rdzv::HostEffects wanted;
    if (host_.wakes(clock_now(), wanted)) {
        host_.judge(clock_now(), wanted);
    }
    carry_out(wanted);
}

}  // namespace ddprun::launcher
