#include "agent/watch/gpu_figures.hpp"

#include <algorithm>
#include <chrono>

#include <fmt/format.h>

#include "base/take_until.hpp"
#include "base/whole_number.hpp"

namespace ddprun::agent {

namespace {

using Figure = std::optional<std::uint64_t>;
constexpr std::uint64_t kPermillePerPercent = 10;

std::string word_of_figure(const Figure& figure) {
    return figure ? fmt::format("{}", *figure) : "-";
}

/// False: it is no figure.
bool read_figure(std::string_view word, Figure& figure) {
    figure = whole_number<std::uint64_t>(word);
    return figure || word == "-";
}

std::optional<GpuFigures> figures_from_word(std::string_view word) {
    GpuFigures gpu;
    const std::optional<int> number = whole_number<int>(take_until(word, ':'));
    bool is_read = number.has_value();
    gpu.number = number.value_or(0);
    for (Figure* figure : {&gpu.permille, &gpu.bytes, &gpu.total_bytes, &gpu.milliwatts}) {
        is_read = is_read && read_figure(take_until(word, ':'), *figure);
    }
    while (is_read && !word.empty() && word != "-") {
        const std::optional<int> rank = whole_number<int>(take_until(word, ','));
        is_read = rank && *rank >= 0;
        gpu.ranks.emplace_back(rank.value_or(0));
    }
    return is_read ? std::optional(gpu) : std::nullopt;
}

std::string ranks_text(const std::vector<LocalRank>& ranks, Rank base_rank) {
    std::string text;
    for (const LocalRank rank : ranks) {
        text +=
            fmt::format("{}{}", text.empty() ? "rank " : ", ", base_rank.value() + rank.value());
    }
    return text.empty() ? "no rank's" : text;
}

}  // namespace

std::string text_of(const AllGpuFigures& gpus) {
    std::string text;
    for (const GpuFigures& gpu : gpus) {
        std::string ranks;
        for (const LocalRank rank : gpu.ranks) {
            ranks += fmt::format("{}{}", ranks.empty() ? "" : ",", rank.value());
        }
        text += fmt::format("{}{}:{}:{}:{}:{}:{}", text.empty() ? "" : " ", gpu.number,
                            word_of_figure(gpu.permille), word_of_figure(gpu.bytes),
                            word_of_figure(gpu.total_bytes), word_of_figure(gpu.milliwatts),
                            ranks.empty() ? "-" : ranks);
    }
    return text;
}

std::optional<AllGpuFigures> gpu_figures_from(std::string_view text) {
    AllGpuFigures gpus;
    while (!text.empty()) {
        std::optional<GpuFigures> gpu = figures_from_word(take_until(text, ' '));
        if (!gpu) {
            return std::nullopt;
        }
        gpus.push_back(*std::move(gpu));
    }
    return gpus;
}

void add_gpu_figures(const AllGpuFigures& gpus, std::vector<WorkerState>& workers) {
    for (std::size_t i = 0; i < workers.size(); ++i) {
        WorkerState& worker = workers[i];
        std::uint64_t permille = 0;
        int tell_use = 0;
        const auto add = [](Figure& sum, const Figure& figure) {
            if (figure) {
                sum = sum.value_or(0) + *figure;
            }
        };
        for (const GpuFigures& gpu : gpus) {
            if (std::find(gpu.ranks.begin(), gpu.ranks.end(), LocalRank(static_cast<int>(i))) ==
                gpu.ranks.end()) {
                continue;
            }
            permille += gpu.permille.value_or(0);
            tell_use += gpu.permille ? 1 : 0;
            add(worker.gpu_memory_bytes, gpu.bytes);
            add(worker.gpu_memory_total_bytes, gpu.total_bytes);
            add(worker.gpu_milliwatts, gpu.milliwatts);
        }
        if (tell_use > 0) {
            constexpr int kWhole = 1000;
            worker.gpu_permille = std::min(static_cast<int>(permille) / tell_use, kWhole);
        }
    }
}

void GpuBusy::add(const AllGpuFigures& gpus) {
    for (const GpuFigures& gpu : gpus) {
        if (gpu.permille) {
            Sum& sum = sums_[gpu.number];
            sum.permille += *gpu.permille;
            ++sum.looks;
            sum.ranks = gpu.ranks;
        }
    }
}

std::optional<std::string> GpuBusy::line(Rank base_rank, const std::string& host) const {
    constexpr int kNamedMax = 8;
    std::uint64_t least = 1000;
    std::uint64_t most = 0;
    int idle = 0;
    std::string named;
    for (const auto& [number, sum] : sums_) {
        const std::uint64_t permille = sum.permille / sum.looks;
        least = std::min(least, permille);
        most = std::max(most, permille);
        if (permille < static_cast<std::uint64_t>(limits_.gpu_idle_permille)) {
            if (++idle <= kNamedMax) {
                named +=
                    fmt::format("; GPU {} ({}) is idle: {} %", number,
                                ranks_text(sum.ranks, base_rank), permille / kPermillePerPercent);
            }
        }
    }
    const int all = static_cast<int>(sums_.size());
    if (all == 0) {
        return std::nullopt;
    }
    if (idle == 0) {
        return fmt::format("{} of {} {} busy in the first minute: {} to {} %",
                           all == 1 ? "the GPU" : fmt::format("all {} GPUs", all), host,
                           all == 1 ? "is" : "are", least / kPermillePerPercent,
                           most / kPermillePerPercent);
    }
    return fmt::format("{} of {} GPUs of {} {} busy in the first minute{}{}", all - idle, all, host,
                       all - idle == 1 ? "is" : "are", named,
                       idle > kNamedMax ? fmt::format("; and {} more", idle - kNamedMax) : "");
}

void GpuPower::add(Instant now, const AllGpuFigures& gpus) {
    constexpr std::uint64_t kWhole = 1000;
    last_ = gpus;
    bool tells_any = false;
    bool works_any = false;
    for (const GpuFigures& gpu : gpus) {
        if (!gpu.milliwatts) {
            continue;
        }
        std::uint64_t& most = most_[gpu.number];
        most = std::max(most, *gpu.milliwatts);
        tells_any = true;
        works_any =
            works_any || *gpu.milliwatts * kWhole >=
                             most * static_cast<std::uint64_t>(limits_.waiting_power_permille);
    }
    if (!tells_any || works_any) {
        waits_since_.reset();
    } else if (!waits_since_) {
        waits_since_ = now;
    }
}

bool GpuPower::waits(Instant now, Milliseconds after) const {
    return waits_since_ && *waits_since_ + after <= now;
}

HangSeen GpuPower::seen(Milliseconds after, Rank base_rank, const std::string& host) const {
    const auto share = [this](const GpuFigures& gpu) {
        const auto most = most_.find(gpu.number);
        return most == most_.end() || !gpu.milliwatts || most->second == 0
                   ? 1.0
                   : static_cast<double>(*gpu.milliwatts) / static_cast<double>(most->second);
    };
    const auto least = std::min_element(
        last_.begin(), last_.end(),
        [&share](const auto& one, const auto& other) { return share(one) < share(other); });
    constexpr std::uint64_t kMilli = 1000;
    HangSeen seen{.host = host};
    if (!least->ranks.empty()) {
        seen.rank = Rank(base_rank.value() + least->ranks.front().value());
    }
    seen.text = fmt::format(
        "the GPUs of {} only wait for {} s: least draws GPU {} ({}), {} W of {} W before", host,
        std::chrono::duration_cast<std::chrono::seconds>(after).count(), least->number,
        ranks_text(least->ranks, base_rank), *least->milliwatts / kMilli,
        most_.at(least->number) / kMilli);
    return seen;
}

}  // namespace ddprun::agent
