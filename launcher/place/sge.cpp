#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/limits.hpp"
#include "base/whole_number.hpp"
#include "launcher/place/host_shares.hpp"
#include "launcher/place/schedulers.hpp"
#include "launcher/place/variables.hpp"

namespace ddprun::launcher {

namespace {

/// Grid Engine: Sun's, Son of, Univa's, Altair's. Only the first node, where the job's script runs,
/// has the list of all.
class Sge {
public:
    explicit Sge(const Surroundings& surroundings)
        : surroundings_(surroundings), variables_(surroundings) {}

    [[nodiscard]] Result<std::optional<Place>> find() {
        if (!variables_.has("JOB_ID") || !variables_.has("SGE_TASK_ID")) {
            return std::optional<Place>{};
        }
        Place place;
        for (const auto take : {&Sge::take_job, &Sge::take_nodes}) {
            if (const Result<void> taken = (this->*take)(place); !taken) {
                return taken.error();
            }
        }
        place.start_line = fmt::format(kOpenMpiOnePerNode, place.nodes);
        tell_by_flags(place);
        return std::optional<Place>{std::move(place)};
    }

private:
    [[nodiscard]] Result<void> take_job(Place& place) {
        constexpr std::uint64_t kMost = std::numeric_limits<std::uint32_t>::max();
        const Result<std::uint64_t> job = variables_.number({"JOB_ID"}, kMost, 0);
        const Result<int> restarts = variables_.small({"RESTARTED"}, 1, 0);
        if (!job || !restarts) {
            return !job ? job.error() : restarts.error();
        }
        number_ = *job;
        place.job_id = fmt::format("{}", *job);
        const std::string task = variables_.text("SGE_TASK_ID");
        if (const auto index = whole_number<std::uint32_t>(task)) {  // Else "undefined".
            place.job_id += "." + task;
            number_ += *index;
        }
        place.job = "sge job " + place.job_id;
        place.restarts = *restarts;
        return {};
    }

    [[nodiscard]] Result<void> take_nodes(Place& place) {
        const std::optional<Variable> file = variables_.first_of({"PE_HOSTFILE"});
        if (!file) {
            return {};  // Without a parallel environment a job has one node.
        }
        const std::optional<std::string> text = surroundings_.read_text(file->value);
        if (!text) {
            const Result<int> nodes = variables_.small({"NHOSTS"}, Limits{}.nodes_max, 0);
            place.nodes = nodes ? *nodes : 0;
            return {};
        }
        const Result<std::vector<HostShare>> shares = shares_of_lines(*text);
        if (!shares) {
            return file->wrong(shares.error().what);
        }
        take_shares(*shares, number_, place);
        place.node_rank =
            static_cast<int>(own_share(*shares, surroundings_.host_name()).value_or(0));
        place.is_on_every_node = false;
        return {};
    }

    const Surroundings& surroundings_;
    const Variables variables_;
    std::uint64_t number_ = 0;  ///< of the job, and of the array's task
};

}  // namespace

Result<std::optional<Place>> place_in_sge(const Surroundings& surroundings) {
    return Sge(surroundings).find();
}

}  // namespace ddprun::launcher
