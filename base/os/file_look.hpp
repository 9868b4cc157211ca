#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>

namespace ddprun {

/// Checks files on a thread of its own, because a file system (of a network, that stalls) may block
/// its caller without bound. One look at a time: one that hangs is left to its thread, and no
/// second one begins before it has an answer. Owned and called by the thread of `io`, whose run it
/// outlives.
class FileLook {
public:
    explicit FileLook(boost::asio::io_context& io);
    /// Waits for nothing.
    ~FileLook();
    FileLook(const FileLook&) = delete;
    FileLook& operator=(const FileLook&) = delete;

    /// The last look has no answer yet.
    [[nodiscard]] bool is_asked() const { return thread_.joinable(); }

    /// Runs `work`, which holds values only and has no effect but its result, on the thread, and
    /// then `answer` on that of `io`, never at once. If no thread can be started, `answer` gets
    /// nothing. Must not be called while is_asked().
    template <typename Answer>
    void ask(std::function<Answer()> work, std::function<void(std::optional<Answer>)> answer) {
        const bool is_running = run([shared = shared_, work = std::move(work), answer, this] {
            auto found = std::make_shared<std::optional<Answer>>(work());
            shared->post([this, found, answer] {
                thread_.join();
                answer(std::move(*found));
            });
        });
        if (!is_running) {
            shared_->post([answer = std::move(answer)] { answer(std::nullopt); });
        }
    }

private:
    /// State that a thread may touch even if it hangs longer than its FileLook lives.
    class Shared {
    public:
        explicit Shared(boost::asio::io_context& io) : io_(&io) {}
        void post(std::function<void()> handler);
        void close();

    private:
        std::mutex mutex_;
        boost::asio::io_context* io_;  ///< null: its FileLook is gone, answers are dropped
    };

    [[nodiscard]] bool run(std::function<void()> work);

    std::shared_ptr<Shared> shared_;
    std::thread thread_;  ///< of the look that has no answer yet
};

}  // namespace ddprun
