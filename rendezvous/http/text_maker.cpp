#include "rendezvous/http/text_maker.hpp"

#include <algorithm>
#include <utility>

#include <boost/asio/post.hpp>
#include <fmt/format.h>

#include "base/os/signals_blocked.hpp"

namespace ddprun::rdzv {

namespace {

void tell(const std::vector<TextMaker::OnText>& told, const Result<TextMaker::Text>& text) {
    for (const TextMaker::OnText& one : told) {
        one(text);
    }
}

}  // namespace

TextMaker::~TextMaker() {
    if (thread_) {
        thread_->stop();
        thread_->join();
    }
}

void TextMaker::want(const std::string& name, Look look, OnText done) {
    const auto same = std::find_if(wanted_.begin(), wanted_.end(),
                                   [&name](const Wanted& other) { return other.name == name; });
    if (same != wanted_.end()) {
        same->told.push_back(std::move(done));
        return;
    }
    wanted_.push_back({.name = name, .look = std::move(look), .told = {std::move(done)}});
    if (!is_making_) {
        begin_next();
    }
}

void TextMaker::begin_next() {
    is_making_ = false;
    while (!is_making_ && !wanted_.empty()) {
        Wanted wanted = std::move(wanted_.front());
        wanted_.pop_front();
        if (const std::size_t held = bytes_held(); held > bytes_max_) {
            tell(wanted.told,
                 Error{ErrorCode::Unreachable,
                       fmt::format("answers of {} MiB are on their way to others who take their "
                                   "time: ask again later",
                                   held >> 20)});
            continue;
        }
        Result<std::function<std::string()>> text = wanted.look();
        if (!text) {
            tell(wanted.told, text.error());
            continue;
        }
        is_making_ = true;
        make(std::move(wanted), *std::move(text));
    }
}

void TextMaker::make(Wanted wanted, std::function<std::string()> text) {
    if (!thread_) {
        const SignalsBlocked blocked;  // They are for the loop's thread.
        thread_.emplace(1);
    }
    boost::asio::post(
        *thread_, [this, told = std::move(wanted.told), make_it = std::move(text)]() mutable {
            auto made = std::make_shared<const std::string>(make_it());
            make_it = nullptr;  // Frees the data that it has read.
            boost::asio::post(io_, [this, told = std::move(told), made = std::move(made)] {
                held_.push_back(made);
                tell(told, made);
                begin_next();
            });
        });
}

std::size_t TextMaker::bytes_held() {
    std::size_t bytes = 0;
    std::erase_if(held_, [&bytes](const std::weak_ptr<const std::string>& one) {
        const Text text = one.lock();
        bytes += text ? text->size() : 0;
        return !text;
    });
    return bytes;
}

}  // namespace ddprun::rdzv
