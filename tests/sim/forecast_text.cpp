// Writes a forecast as a text for people, and for programs.

#include <charconv>
#include <cmath>
#include <optional>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tests/sim/forecast.hpp"

namespace ddprun::sim {

namespace {

double seconds(Duration duration) {
    return std::chrono::duration<double>(duration).count();
}

/// "12 s", "3.4 h".
std::string text_of(Duration duration) {
    const double value = seconds(duration);
    if (value < 1) {
        return fmt::format("{:.0f} ms", value * 1e3);
    }
    if (value < 120) {
        return fmt::format("{:.1f} s", value);
    }
    if (value < 7200) {
        return fmt::format("{:.1f} min", value / 60);
    }
    return value < 172800 ? fmt::format("{:.1f} h", value / 3600)
                          : fmt::format("{:.1f} days", value / 86400);
}

/// Young's: the square root of twice the cost of a checkpoint times the time between failures.
Duration best_interval(const ForecastOptions& options) {
    const double best = std::sqrt(2 * seconds(options.checkpoint_takes) * seconds(options.mtbf));
    return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(best));
}

}  // namespace

std::string forecast_table(const ForecastOptions& options, const Forecast& result) {
    std::string text =
        fmt::format("{} nodes of {} workers, {} spare{}, a failure every {}: {} of training\n\n",
                    options.nodes, options.slots, options.spares, options.spares == 1 ? "" : "s",
                    text_of(options.mtbf), text_of(options.lasts));
    text += fmt::format("  {} failures, {} restarts, {} nodes replaced\n\n", result.failures,
                        result.restarts, result.nodes_replaced);
    const auto line = [&](const char* what, Duration time, const std::string& remark) {
        text += fmt::format("  {:<28} {:>10} {:>8.3f} %   {}\n", what, text_of(time),
                            100 * seconds(time) / seconds(result.total), remark);
    };
    line("useful work", result.useful, "");
    line("lost since a checkpoint", result.lost_work, "");
    line("checkpoints", result.checkpoints,
         fmt::format("every {}, {} each", text_of(options.checkpoint_every),
                     text_of(options.checkpoint_takes)));
    line("starting workers", result.starting,
         fmt::format("{} each time", text_of(options.restart_takes)));
    line("noticing failures", result.noticing,
         fmt::format("{} at most", text_of(result.noticing_max)));
    line("stopping and forming", result.forming,
         fmt::format("{} at most", text_of(result.forming_max)));
    line("waiting for nodes", result.waiting, "");
    if (result.smaller.count() > 0) {
        line("fewer nodes", result.smaller, "");
    }
    text += fmt::format("\n  goodput {:.2f} %\n", 100 * result.goodput());
    if (options.checkpoint_takes.count() > 0) {
        text += fmt::format("  a checkpoint every {} would lose least (Young's formula)\n",
                            text_of(best_interval(options)));
    }
    return text;
}

std::string forecast_json(const ForecastOptions& options, const Forecast& result) {
    const nlohmann::ordered_json json = {
        {"nodes", options.nodes},
        {"slots", options.slots},
        {"spares", options.spares},
        {"mtbf_s", seconds(options.mtbf)},
        {"total_s", seconds(result.total)},
        {"failures", result.failures},
        {"restarts", result.restarts},
        {"nodes_replaced", result.nodes_replaced},
        {"useful_s", seconds(result.useful)},
        {"lost_work_s", seconds(result.lost_work)},
        {"checkpoints_s", seconds(result.checkpoints)},
        {"starting_s", seconds(result.starting)},
        {"noticing_s", seconds(result.noticing)},
        {"noticing_max_s", seconds(result.noticing_max)},
        {"forming_s", seconds(result.forming)},
        {"forming_max_s", seconds(result.forming_max)},
        {"waiting_s", seconds(result.waiting)},
        {"fewer_nodes_s", seconds(result.smaller)},
        {"goodput", result.goodput()},
        {"best_checkpoint_every_s", seconds(best_interval(options))},
    };
    return json.dump(2) + "\n";
}

Result<Duration> parse_duration(const std::string& text) {
    static constexpr std::pair<std::string_view, double> kUnits[] = {
        {"ms", 1e-3}, {"s", 1}, {"m", 60}, {"min", 60}, {"h", 3600}, {"d", 86400}};
    double value = 0;
    const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), value);
    const std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
    for (const auto& [name, factor] : kUnits) {
        constexpr double kMost = 100.0 * 365 * 86400;
        if (fault == std::errc() && unit == name && value >= 0 && value * factor <= kMost) {
            return std::chrono::duration_cast<Duration>(
                std::chrono::duration<double>(value * factor));
        }
    }
    return Error{ErrorCode::InvalidArgument,
                 fmt::format("'{}' is no duration; write a number with ms, s, m, h or d", text)};
}

}  // namespace ddprun::sim
