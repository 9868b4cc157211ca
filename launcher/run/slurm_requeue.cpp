#include "launcher/run/slurm_requeue.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <utility>

#include <boost/asio/post.hpp>
#include <fmt/format.h>

#include "base/printable.hpp"
#include "launcher/place/requeue.hpp"

namespace ddprun::launcher {

SlurmRequeue::SlurmRequeue(boost::asio::io_context& io, const Limits& limits, std::string scontrol,
                           std::string job, Events events)
    : io_(io),
      limits_(limits),
      scontrol_(std::move(scontrol)),
      job_(std::move(job)),
      events_(std::move(events)),
      program_(io, {.on_child = [this](int pid) { events_.on_child(pid); },
                    .on_end = [this](const std::optional<siginfo_t>& end) { answer(end); }}) {}

void SlurmRequeue::check() {
    ask({"show", "job", job_}, [this](const Result<std::string>& shown) {
        const std::string why = shown ? why_not_requeued(*shown) : shown.error().what;
        if (!why.empty()) {
            events_.say(
                fmt::format("warning: --requeue has no effect on slurm job {}: {}", job_, why));
        }
    });
}

void SlurmRequeue::carry_out(std::function<void()> on_done) {
    on_done_ = std::move(on_done);
    ask({"show", "job", job_}, [this](const Result<std::string>& shown) { requeue(shown); });
}

void SlurmRequeue::requeue(const Result<std::string>& shown) {
    std::string why;
    if (!shown) {
        why = shown.error().what;
    } else if (const std::string state = field_of_job(*shown, "JobState"); state != "RUNNING") {
        why = fmt::format("Slurm ends it itself ({})", state);
    } else {
        why = why_not_requeued(*shown);
    }
    if (!why.empty()) {
        say("is not put back into the queue: " + why);
        on_done_();
        return;
    }
    // Slurm ends what is left of the job at once: this is said before.
    say("goes back into the queue");
    ask({"requeue", job_}, [this](const Result<std::string>& done) {
        if (!done) {
            say("is not put back into the queue: " + done.error().what);
        }
        on_done_();
    });
}

void SlurmRequeue::say(const std::string& what) {
    events_.say(fmt::format("slurm job {} {}", job_, what));
}

/// In place of what is being asked.
void SlurmRequeue::ask(const std::vector<std::string>& words, OnAnswer on_answer) {
    on_answer_ = std::move(on_answer);
    if (const Result<void> started = start(words); !started) {
        boost::asio::post(io_, [this, error = started.error()] { on_answer_(error); });
    }
}

Result<void> SlurmRequeue::start(const std::vector<std::string>& words) {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) != 0) {
        return ddprun::system_error(errno, "a pipe for scontrol");
    }
    output_ = UniqueFd(ends[0]);
    const UniqueFd into(ends[1]);
    ProgramSpec spec;
    spec.command = {scontrol_};
    spec.command.insert(spec.command.end(), words.begin(), words.end());
    spec.fds = {FdMapping{.from = into.get(), .to = STDOUT_FILENO},
                FdMapping{.from = into.get(), .to = STDERR_FILENO}};
    return program_.start(spec, limits_.requeue_timeout);
}

/// The program prints far less than a pipe takes.
std::string SlurmRequeue::read_output() {
    std::string text(limits_.drain_text_bytes_max, '\0');
    const ssize_t count = ::read(output_.get(), text.data(), text.size());
    text.resize(count < 0 ? 0 : static_cast<std::size_t>(count));
    return text;
}

void SlurmRequeue::answer(const std::optional<siginfo_t>& end) {
    // It may ask the next question.
    const OnAnswer on_answer = std::move(on_answer_);
    const std::string fault = fault_of(end, limits_.requeue_timeout);
    if (!end) {
        on_answer(Error{ErrorCode::TimedOut, "scontrol " + fault});
        return;
    }
    std::string text = read_output();
    if (fault.empty()) {
        on_answer(text);
        return;
    }
    const std::string said = printable(text.substr(0, text.find('\n')), 200);
    on_answer(Error{ErrorCode::Refused, fmt::format("scontrol {}: {}", fault, said)});
}

}  // namespace ddprun::launcher
