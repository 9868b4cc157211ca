#include "agent/notify/notifier.hpp"

#include <utility>
#include <variant>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "agent/notify/command_delivery.hpp"
#include "agent/notify/http_delivery.hpp"
#include "base/os/unix_time.hpp"
#include "rendezvous/events/event.hpp"
#include "rendezvous/wire/json_text.hpp"

namespace ddprun::agent {

Notifier::Notifier(boost::asio::io_context& io, const Limits& limits, NotifierOptions options,
                   Events events)
    : limits_(limits),
      options_(std::move(options)),
      events_(std::move(events)),
      queue_(limits),
      pause_(io, [this] { go_on(); }),
      end_(io, [this] { give_up(); }) {
    const auto on_end = [this](const std::string& fault) { attempt_ended(fault); };
    if (const auto* url = std::get_if<NotifyUrl>(&options_.target)) {
        delivery_ = std::make_unique<HttpDelivery>(io, limits, *url, on_end);
    } else {
        delivery_ = std::make_unique<CommandDelivery>(
            io, limits, std::get<NotifyCommand>(options_.target).command,
            [this](int pid) { events_.on_child(pid); }, on_end);
    }
}

void Notifier::hear(const rdzv::RendezvousMessage& message) {
    if (const auto* accepted = std::get_if<rdzv::Accepted>(&message)) {
        if (!accepted->tells_events && !std::exchange(is_old_rendezvous_said_, true)) {
            say("the rendezvous is an older one and does not say what happens: there are no "
                "notices; start it anew with this version");
        }
    } else if (const auto* happened = std::get_if<rdzv::Happened>(&message)) {
        pass_on(*happened);
    }
}

void Notifier::pass_on(const rdzv::Happened& happened) {
    const nlohmann::json event = rdzv::parse_shallow_json(happened.event);
    if (!event.is_object() || !event.contains("notice") || !event["notice"].is_string()) {
        return;
    }
    nlohmann::ordered_json notice = {
        {"v", rdzv::kEventSchema},   {"number", ++count_},  {"time", rdzv::utc_text(unix_now())},
        {"notice", event["notice"]}, {"job", options_.job}, {"run_id", options_.run},
        {"sender", options_.host}};
    notice.update(nlohmann::ordered_json(event));
    queue_.add(event["notice"].get<std::string>(),
               notice.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
    go_on();
}

void Notifier::go_on() {
    if (const std::optional<std::string> line = queue_.begin(clock_now())) {
        delivery_->begin(*line);
    }
    pause_.set(queue_.next_deadline());
}

void Notifier::attempt_ended(const std::string& fault) {
    if (const std::string said = queue_.ended(clock_now(), fault); !said.empty()) {
        say(said);
    }
    go_on();
    if (done_ && queue_.size() == 0) {
        end_.set(std::nullopt);
        std::exchange(done_, nullptr)();
    }
}

void Notifier::finish(std::function<void()> done) {
    if (queue_.size() == 0) {
        done();
        return;
    }
    done_ = std::move(done);
    end_.set(clock_now() + limits_.notices_end_timeout);
}

void Notifier::give_up() {
    delivery_->cancel();
    pause_.set(std::nullopt);
    say(fmt::format("{} notice{} not delivered within {} s of the end: ddprun waits no longer",
                    queue_.size(), queue_.size() == 1 ? " was" : "s were",
                    limits_.notices_end_timeout.count() / 1000));
    std::exchange(done_, nullptr)();
}

void Notifier::say(const std::string& what) {
    events_.say(fmt::format("--notify, {}: {}", name_of(options_.target), what));
}

}  // namespace ddprun::agent
