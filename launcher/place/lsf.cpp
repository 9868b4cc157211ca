#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/limits.hpp"
#include "launcher/place/host_shares.hpp"
#include "launcher/place/schedulers.hpp"
#include "launcher/place/variables.hpp"

namespace ddprun::launcher {

namespace {

/// IBM Spectrum LSF.
class Lsf {
public:
    explicit Lsf(const Surroundings& surroundings)
        : surroundings_(surroundings), variables_(surroundings) {}

    [[nodiscard]] Result<std::optional<Place>> find() {
        if (!variables_.has("LSB_JOBID")) {
            return std::optional<Place>{};
        }
        Place place;
        for (const auto take : {&Lsf::take_job, &Lsf::take_nodes, &Lsf::take_task}) {
            if (const Result<void> taken = (this->*take)(place); !taken) {
                return taken.error();
            }
        }
        return std::optional<Place>{std::move(place)};
    }

private:
    [[nodiscard]] Result<void> take_job(Place& place) {
        constexpr std::uint64_t kMost = std::numeric_limits<std::uint32_t>::max();
        const Result<std::uint64_t> job = variables_.number({"LSB_JOBID"}, kMost, 0);
        const Result<std::uint64_t> index = variables_.number({"LSB_JOBINDEX"}, kMost, 0);
        if (!job || !index) {
            return !job ? job.error() : index.error();
        }
        number_ = *job + *index;
        place.job_id = *index == 0 ? fmt::format("{}", *job) : fmt::format("{}.{}", *job, *index);
        place.job = "lsf job " + place.job_id;
        place.restarts = variables_.text("LSB_RESTART") == "Y" ? 1 : 0;
        return {};
    }

    [[nodiscard]] Result<void> take_nodes(Place& place) {
        const Result<std::vector<HostShare>> found = shares();
        if (!found) {
            return found.error();
        }
        take_shares(*found, number_, place);
        const std::optional<std::size_t> own = own_share(*found, surroundings_.host_name());
        if (!own) {
            return Error{ErrorCode::InvalidArgument,
                         fmt::format("{} is none of the {} nodes of {}", surroundings_.host_name(),
                                     place.nodes, place.job)};
        }
        place.node_rank = static_cast<int>(*own);
        slots_here_ = found->at(*own).slots;
        return {};
    }

    /// blaunch counts its tasks from 1: one for each slot, or for each host that its -z names.
    [[nodiscard]] Result<void> take_task(Place& place) {
        const Result<int> task = variables_.small({"LSF_PM_TASKID"}, 1'000'000, 0);
        if (!task) {
            return task.error();
        }
        place.is_on_every_node = *task > 0;
        if (*task > 0 && *task != place.node_rank + 1) {
            place.tasks_here = slots_here_;
        }
        const char* hosts = slots_here_ == 1 ? "" : " -z \"$(uniq $LSB_DJOB_HOSTFILE)\"";
        place.start_line = fmt::format("blaunch{}", hosts);
        return {};
    }

    /// LSB_HOSTS, a word for each slot, is left out where it would be long.
    [[nodiscard]] Result<std::vector<HostShare>> shares() const {
        if (const std::optional<Variable> pairs = variables_.first_of({"LSB_MCPU_HOSTS"})) {
            Result<std::vector<HostShare>> found = shares_of_pairs(pairs->value);
            return found ? found : Result<std::vector<HostShare>>(pairs->wrong(found.error().what));
        }
        const std::optional<Variable> file = variables_.first_of({"LSB_DJOB_HOSTFILE"});
        const std::optional<std::string> lines =
            file ? surroundings_.read_text(file->value) : std::nullopt;
        if (!lines) {
            return Error{
                ErrorCode::InvalidArgument,
                fmt::format("lsf job {}: LSB_MCPU_HOSTS is not set, so that nobody knows its "
                            "nodes",
                            variables_.text("LSB_JOBID"))};
        }
        Result<std::vector<HostShare>> found = shares_of_slots(*lines);
        return found ? found : Result<std::vector<HostShare>>(file->wrong(found.error().what));
    }

    const Surroundings& surroundings_;
    const Variables variables_;
    std::uint64_t number_ = 0;  ///< of the job, and in an array
    int slots_here_ = 1;
};

}  // namespace

Result<std::optional<Place>> place_in_lsf(const Surroundings& surroundings) {
    return Lsf(surroundings).find();
}

}  // namespace ddprun::launcher
