#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
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

/// OpenPBS, PBS Professional and Torque.
class Pbs {
public:
    explicit Pbs(const Surroundings& surroundings)
        : surroundings_(surroundings), variables_(surroundings) {}

    [[nodiscard]] Result<std::optional<Place>> find() {
        const std::optional<Variable> id = variables_.first_of({"PBS_JOBID"});
        if (!id) {
            return std::optional<Place>{};
        }
        Place place;
        take_job(id->value, place);
        for (const auto take : {&Pbs::take_task, &Pbs::take_nodes}) {
            if (const Result<void> taken = (this->*take)(place); !taken) {
                return taken.error();
            }
        }
        // A task for each slot, which have no number among those of their node.
        if (place.is_on_every_node && !is_torque() && slots_here_ > 1) {
            place.tasks_here = slots_here_;
        }
        take_start_line(place);
        return std::optional<Place>{std::move(place)};
    }

private:
    /// `1399.login01` and, of an array, `1399[7].login01`.
    void take_job(std::string_view id, Place& place) {
        const std::string_view own = id.substr(0, id.find('.'));
        const std::string_view job = own.substr(0, own.find_first_not_of("0123456789"));
        number_ = whole_number<std::uint64_t>(job).value_or(0);
        place.job_id = std::string(job);
        if (job.size() < own.size()) {
            std::string_view index = own.substr(job.size() + 1);
            index = index.substr(0, index.find(']'));
            place.job_id += fmt::format(".{}", index);
            number_ += whole_number<std::uint64_t>(index).value_or(0);
        }
        place.job = "pbs job " + place.job_id;
    }

    /// The job's script is the first task of the first node; pbsdsh starts others.
    [[nodiscard]] Result<void> take_task(Place& place) {
        constexpr std::uint64_t kMost = std::numeric_limits<std::uint32_t>::max();
        const Result<int> node = variables_.small({"PBS_NODENUM"}, Limits{}.nodes_max, 0);
        const Result<std::uint64_t> task = variables_.number({"PBS_TASKNUM"}, kMost, 1);
        if (!node || !task) {
            return !node ? node.error() : task.error();
        }
        node_number_ = *node;
        place.is_on_every_node = node_number_ > 0 || *task > 1;
        return {};
    }

    [[nodiscard]] Result<void> take_nodes(Place& place) {
        const std::optional<Variable> file = variables_.first_of({"PBS_NODEFILE"});
        const std::optional<std::string> text =
            file ? surroundings_.read_text(file->value) : std::nullopt;
        if (!text) {
            take_untold_nodes(place);
            return {};
        }
        const Result<std::vector<HostShare>> shares = shares_of_slots(*text);
        if (!shares) {
            return file->wrong(shares.error().what);
        }
        take_shares(*shares, number_, place);
        const auto number = static_cast<std::size_t>(node_number_);
        const std::optional<std::size_t> named = own_share(*shares, surroundings_.host_name());
        if (!named && number >= shares->size()) {
            return file->wrong(fmt::format("{} is none of its {} nodes", surroundings_.host_name(),
                                           shares->size()));
        }
        place.node_rank = static_cast<int>(named.value_or(number));
        slots_here_ = shares->at(named.value_or(number)).slots;
        return {};
    }

    void take_untold_nodes(Place& place) const {
        const Result<int> nodes = variables_.small({"PBS_NUM_NODES"}, Limits{}.nodes_max, 0);
        place.nodes = nodes ? *nodes : 0;
        place.node_rank = node_number_;
    }

    void take_start_line(Place& place) const {
        if (is_torque()) {
            place.start_line = "pbsdsh -u";
            tell_by_flags(place);
        } else if (slots_here_ == 1) {
            place.start_line = "pbsdsh --";
        } else {
            place.start_line = fmt::format(kOpenMpiOnePerNode, place.nodes);
        }
    }

    /// Only Torque numbers slots. It has the list of nodes on the first of them alone.
    [[nodiscard]] bool is_torque() const { return variables_.has("PBS_VNODENUM"); }

    const Surroundings& surroundings_;
    const Variables variables_;
    std::uint64_t number_ = 0;  ///< of the job
    int node_number_ = 0;
    int slots_here_ = 1;
};

}  // namespace

Result<std::optional<Place>> place_in_pbs(const Surroundings& surroundings) {
    return Pbs(surroundings).find();
}

}  // namespace ddprun::launcher
