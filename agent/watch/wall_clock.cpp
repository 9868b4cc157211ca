#include "agent/watch/wall_clock.hpp"

#include <cstdlib>
#include <ctime>

#include <fmt/chrono.h>
#include <fmt/format.h>

namespace ddprun::agent {

namespace {

std::tm broken_down(std::chrono::sys_seconds time) {
    return fmt::gmtime(static_cast<std::time_t>(time.time_since_epoch().count()));
}

}  // namespace

WallClock::WallClock(const rdzv::Verdict& verdict, const HeardAt& heard)
    : lasted_(verdict.timeline.empty() ? Milliseconds(0) : verdict.timeline.back().at),
      start_(Milliseconds(heard.unix_ms) - verdict.age - lasted_),
      offset_(heard.utc_offset_s) {}

std::chrono::sys_seconds WallClock::local(Milliseconds at) const {
    return std::chrono::floor<std::chrono::seconds>(utc(at)) + offset_;
}

bool WallClock::is_one_day() const {
    using std::chrono::days;
    return std::chrono::floor<days>(local(Milliseconds(0))) ==
           std::chrono::floor<days>(local(lasted_));
}

std::string WallClock::time(Milliseconds at) const {
    return fmt::format("{:%H:%M:%S}", broken_down(local(at)));
}

std::string WallClock::day_and_time(Milliseconds at) const {
    return fmt::format("{:%Y-%m-%d %H:%M:%S}", broken_down(local(at)));
}

std::string WallClock::zone() const {
    const auto minutes = std::abs(offset_.count()) / 60;
    return fmt::format("{}{:02}{:02}", offset_.count() < 0 ? '-' : '+', minutes / 60, minutes % 60);
}

std::string WallClock::iso(Milliseconds at) const {
    const auto whole = std::chrono::floor<std::chrono::seconds>(utc(at));
    return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z", broken_down(whole),
                       (utc(at) - whole).count());
}

}  // namespace ddprun::agent
