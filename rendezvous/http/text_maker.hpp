#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/thread_pool.hpp>

#include "base/result.hpp"

namespace ddprun::rdzv {

/// Makes texts that take long, one after the other on a thread of its own, which the first one
/// starts. Equal wishes at the same time get the same text. On the thread of `io`, which outlives
/// this.
class TextMaker {
public:
    using Text = std::shared_ptr<const std::string>;
    /// Looks at how things are, on the thread of `io`; what it returns makes the text of that, on
    /// the other thread, once.
    using Look = std::function<Result<std::function<std::string()>>()>;
    using OnText = std::function<void(const Result<Text>& text)>;

    /// Texts that are still in use have at most `bytes_max` when a new one is begun.
    TextMaker(boost::asio::io_context& io, std::size_t bytes_max)
        : io_(io), bytes_max_(bytes_max) {}
    TextMaker(const TextMaker&) = delete;
    TextMaker& operator=(const TextMaker&) = delete;

    /// Waits for the text that is being made; calls no OnText any more.
    ~TextMaker();

    /// `name` says what it is: who wants the same while that is not begun gets the same. `done` is
    /// called once, perhaps at once: with the text; what `look` failed with; or Unreachable, there
    /// are too many texts that are not taken.
    void want(const std::string& name, Look look, OnText done);

private:
    struct Wanted {
        std::string name;
        Look look;
        std::vector<OnText> told;
    };

    void begin_next();
    void make(Wanted wanted, std::function<std::string()> text);
    [[nodiscard]] std::size_t bytes_held();

    boost::asio::io_context& io_;
    std::size_t bytes_max_;
    std::deque<Wanted> wanted_;
    std::vector<std::weak_ptr<const std::string>> held_;
    std::optional<boost::asio::thread_pool> thread_;
    bool is_making_ = false;
};

}  // namespace ddprun::rdzv
