#include "launcher/plan/gpus.hpp"

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "base/trimmed.hpp"
#include "base/whole_number.hpp"
#include "launcher/plan/values.hpp"

namespace ddprun::launcher {

namespace {

using Gpus = std::vector<Gpu>;

/// The names by which a GPU can be asked for.
bool has_name(const Gpu& gpu, std::string_view beginning) {
    return gpu.uuid.starts_with(beginning) ||
           std::any_of(gpu.mig_uuids.begin(), gpu.mig_uuids.end(),
                       [beginning](const auto& mig) { return mig.starts_with(beginning); }) ||
           // MIG devices were once called MIG-GPU-<uuid of the GPU>/<instance>/<instance>.
           (!gpu.uuid.empty() && beginning.starts_with("MIG-" + gpu.uuid + "/"));
}

std::optional<std::size_t> number_of(std::string_view name, const Gpus& present) {
    const auto is_it = [name](const Gpu& gpu) { return has_name(gpu, name); };
    const auto found = std::find_if(present.begin(), present.end(), is_it);
    if (found == present.end() || std::any_of(found + 1, present.end(), is_it)) {
        return std::nullopt;
    }
    return static_cast<std::size_t>(found - present.begin());
}

/// The number with which an entry begins, as strtoul() and CUDA read it: "1x" is 1.
std::optional<std::size_t> leading_number(std::string_view entry) {
    if (entry.starts_with('+')) {
        entry.remove_prefix(1);
    }
    return whole_number<std::size_t>(entry.substr(0, entry.find_first_not_of("0123456789")));
}

/// The entries up to the first that is none; nothing at all if one is listed twice.
std::vector<VisibleGpu> listed(std::string_view list) {
    const auto kind_of = [](std::string_view entry) {
        return entry.starts_with("GPU-") ? 1 : entry.starts_with("MIG-") ? 2 : 0;
    };
    const int kind = kind_of(trimmed(list));
    std::vector<VisibleGpu> gpus;
    for (std::string_view entry : split(list, ',')) {
        entry = trimmed(entry);
        const VisibleGpu gpu{std::string{entry}, kind == 0 ? leading_number(entry) : std::nullopt};
        if (kind_of(entry) != kind || (kind == 0 && !gpu.number)) {
            break;
        }
        if (std::any_of(gpus.begin(), gpus.end(), [&gpu, kind](const VisibleGpu& other) {
                return kind == 0 ? other.number == gpu.number : other.name == gpu.name;
            })) {
            return {};
        }
        gpus.push_back(gpu);
    }
    return gpus;
}

Gpus all_of(const std::vector<VisibleGpu>& visible, const Gpus& present) {
    Gpus gpus;
    for (const VisibleGpu& gpu : visible) {
        gpus.push_back(gpu.number ? present[*gpu.number] : Gpu{});
    }
    return gpus;
}

/// /dev/nvidia0, …: the driver is loaded, but its library is missing (as in some containers).
std::optional<Gpus> gpus_of_device_files(const Surroundings& surroundings) {
    static constexpr std::string_view kPrefix = "nvidia";
    const std::vector<std::string> names = surroundings.names_in("/dev");
    const auto found = std::count_if(names.begin(), names.end(), [](const std::string& name) {
        return name.starts_with(kPrefix) &&
               whole_number<unsigned>(std::string_view{name}.substr(kPrefix.size())).has_value();
    });
    return found > 0 ? std::optional{Gpus(static_cast<std::size_t>(found))} : std::nullopt;
}

/// A number of a node of /sys/class/kfd: a line "<key> <number>".
std::optional<std::uint64_t> property(std::string_view properties, std::string_view key) {
    for (const std::string_view line : split(properties, '\n')) {
        if (line.starts_with(key) && line.substr(key.size()).starts_with(' ')) {
            return whole_number<std::uint64_t>(line.substr(key.size() + 1));
        }
    }
    return std::nullopt;
}

/// ROCm's kernel driver lists CPUs too: they have no SIMD units.
std::optional<Gpus> gpus_of_kfd(const Surroundings& surroundings) {
    const std::string folder = "/sys/class/kfd/kfd/topology/nodes";
    std::vector<unsigned> nodes;
    for (const std::string& name : surroundings.names_in(folder)) {
        if (const std::optional<unsigned> number = whole_number<unsigned>(name)) {
            nodes.push_back(*number);
        }
    }
    std::sort(nodes.begin(), nodes.end());
    Gpus gpus;
    for (const unsigned node : nodes) {
        const std::string properties =
            surroundings.read_file(fmt::format("{}/{}/properties", folder, node)).value_or("");
        if (property(properties, "simd_count").value_or(0) == 0) {
            continue;
        }
        Gpu gpu;
        const std::optional<std::uint64_t> location = property(properties, "location_id");
        if (location) {
            gpu.pci_address =
                fmt::format("{:04x}:{:02x}:{:02x}.{:x}", property(properties, "domain").value_or(0),
                            (*location >> 8) & 0xff, (*location >> 3) & 0x1f, *location & 0x7);
        }
        gpus.push_back(std::move(gpu));
    }
    if (gpus.empty()) {
        return std::nullopt;
    }
    // Hidden before HIP counts; HIP's own variable is CUDA's for programs that know only that.
    return all_of(visible_gpus(gpus, surroundings.variable("ROCR_VISIBLE_DEVICES")), gpus);
}

int node_of(const Gpu& gpu, const Surroundings& surroundings) {
    if (gpu.pci_address.empty()) {
        return 0;
    }
    const std::string text =
        surroundings.read_file(fmt::format("/sys/bus/pci/devices/{}/numa_node", gpu.pci_address))
            .value_or("");
    // Machines with a single node often write -1.
    return std::max(0, whole_number<int>(trimmed(text)).value_or(0));
}

}  // namespace

std::vector<VisibleGpu> visible_gpus(const std::optional<std::vector<Gpu>>& present,
                                     const std::optional<std::string>& visible_devices) {
    std::vector<VisibleGpu> visible;
    if (!visible_devices) {
        for (std::size_t i = 0; present && i < present->size(); ++i) {
            visible.push_back({fmt::format("{}", i), i});
        }
        return visible;
    }
    const bool has_names = present && std::any_of(present->begin(), present->end(),
                                                  [](const Gpu& gpu) { return !gpu.uuid.empty(); });
    for (VisibleGpu& gpu : listed(*visible_devices)) {
        if (!gpu.number && has_names) {
            gpu.number = number_of(gpu.name, *present);
            const bool is_known = gpu.number.has_value();
            const bool is_mig = gpu.name.starts_with("MIG-");  // of which a GPU has several
            if (!is_known) {
                break;
            }
            if (!is_mig && std::any_of(visible.begin(), visible.end(), [&gpu](const auto& other) {
                    return other.number == gpu.number;
                })) {
                return {};
            }
        } else if (present && gpu.number && *gpu.number >= present->size()) {
            break;
        }
        visible.push_back(std::move(gpu));
    }
    return visible;
}

GpuSight see_gpus(const Surroundings& surroundings) {
    std::optional<std::string> visible_devices = surroundings.variable("CUDA_VISIBLE_DEVICES");
    std::optional<Gpus> present;
    for (const auto& gpus : {surroundings.gpus_of_nvml(), gpus_of_device_files(surroundings)}) {
        if (!present && gpus && !gpus->empty()) {
            present = gpus;
        }
    }
    if (!present) {
        present = gpus_of_kfd(surroundings);
        const std::optional<std::string> of_hip = surroundings.variable("HIP_VISIBLE_DEVICES");
        visible_devices = present && of_hip ? of_hip : visible_devices;
    }
    return {.visible = visible_gpus(present, visible_devices),
            .present = present.value_or(Gpus{}),
            .is_evident = present.has_value()};
}

std::optional<int> usable_gpus(const Surroundings& surroundings, bool is_asked) {
    const GpuSight gpus = see_gpus(surroundings);
    const bool is_there = !gpus.visible.empty() && (gpus.is_evident || is_asked);
    return is_there ? std::optional{static_cast<int>(gpus.visible.size())} : std::nullopt;
}

bool may_see_nvidia_gpus(const Surroundings& surroundings) {
    const std::optional<std::string> devices = surroundings.variable("CUDA_VISIBLE_DEVICES");
    if (devices && visible_gpus(std::nullopt, devices).empty()) {
        return false;
    }
    for (const char* device : {"/dev/nvidiactl", "/dev/dxg"}) {  // Linux, and Linux in Windows
        if (surroundings.exists(device)) {
            return true;
        }
    }
    std::string folders = surroundings.variable("LD_LIBRARY_PATH").value_or("");
    std::replace(folders.begin(), folders.end(), ';', ':');
    for (const std::string_view folder : split(folders, ':')) {
        if (!folder.empty() && surroundings.exists(fmt::format("{}/libnvidia-ml.so.1", folder))) {
            return true;
        }
    }
    return false;
}

std::optional<std::uint64_t> unheld_memory(const GpuMemoryUse& use,
                                           const std::function<bool(int pid)>& is_living) {
    std::optional<std::uint64_t> unheld = use.bytes;
    for (const GpuHolder& holder : use.holders) {
        if (!unheld || !is_living(holder.pid)) {
            continue;
        }
        if (!holder.bytes) {
            return std::nullopt;
        }
        unheld = *unheld - std::min(*unheld, *holder.bytes);
    }
    return unheld;
}

std::vector<int> nodes_of(const GpuSight& gpus, const Surroundings& surroundings) {
    std::vector<int> nodes;
    for (const VisibleGpu& gpu : gpus.visible) {
        const bool is_known = gpu.number && *gpu.number < gpus.present.size();
        nodes.push_back(is_known ? node_of(gpus.present[*gpu.number], surroundings) : 0);
    }
    return nodes;
}

}  // namespace ddprun::launcher
