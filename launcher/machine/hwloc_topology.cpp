#include "launcher/machine/hwloc_topology.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <memory>

#include <fmt/format.h>
#include <hwloc.h>

#include "launcher/machine/library_close.hpp"

namespace ddprun::launcher {

namespace {

constexpr char kLibrary[] = "libhwloc.so.15";
// Its ABI did not change within 2.x; the newer fields are behind those used here.
static_assert(HWLOC_API_VERSION >= 0x00020000 && HWLOC_API_VERSION < 0x00030000);

/// The functions that are used, found when they are wanted: at every start it would cost as much
/// as the whole plan.
class Hwloc {
public:
    Hwloc() : library_(::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL)) {
        is_complete_ =
            library_ && find(init, "hwloc_topology_init") &&
            find(destroy, "hwloc_topology_destroy") &&
            find(set_flags, "hwloc_topology_set_flags") &&
            find(set_synthetic, "hwloc_topology_set_synthetic") &&
            find(load, "hwloc_topology_load") && find(depth_of, "hwloc_get_type_depth") &&
            find(count_at, "hwloc_get_nbobjs_by_depth") &&
            find(object_at, "hwloc_get_obj_by_depth") && find(first_in, "hwloc_bitmap_first");
    }
    [[nodiscard]] bool is_complete() const { return is_complete_; }

private:
    template <typename Function>
    bool find(Function& function, const char* name) {
        function = reinterpret_cast<Function>(::dlsym(library_.get(), name));
        return function != nullptr;
    }

    std::unique_ptr<void, LibraryClose> library_;
    bool is_complete_ = false;

public:
    decltype(&hwloc_topology_init) init = nullptr;
    decltype(&hwloc_topology_destroy) destroy = nullptr;
    decltype(&hwloc_topology_set_flags) set_flags = nullptr;
    decltype(&hwloc_topology_set_synthetic) set_synthetic = nullptr;
    decltype(&hwloc_topology_load) load = nullptr;
    decltype(&hwloc_get_type_depth) depth_of = nullptr;
    decltype(&hwloc_get_nbobjs_by_depth) count_at = nullptr;
    decltype(&hwloc_get_obj_by_depth) object_at = nullptr;
    decltype(&hwloc_bitmap_first) first_in = nullptr;
};

bool is_cache(hwloc_obj_type_t type) {
    return type >= HWLOC_OBJ_L1CACHE && type <= HWLOC_OBJ_L5CACHE;
}

/// One hardware thread, and what is above it. A part that a machine does not report counts as not
/// shared, but for the cache: then the node's CPUs are as near to each other as is known.
Cpu describe(const Hwloc& hwloc, hwloc_obj_t thread) {
    Cpu cpu;
    cpu.index = static_cast<int>(thread->os_index);
    cpu.core = cpu.index;
    cpu.node = std::max(0, hwloc.first_in(thread->nodeset));
    bool has_cache = false;
    for (hwloc_obj_t above = thread->parent; above != nullptr; above = above->parent) {
        if (above->type == HWLOC_OBJ_CORE) {
            cpu.core = hwloc.first_in(above->cpuset);
        } else if (above->type == HWLOC_OBJ_PACKAGE) {
            cpu.package = static_cast<int>(above->os_index);
        } else if (is_cache(above->type)) {
            cpu.cache = hwloc.first_in(above->cpuset);
            has_cache = true;
        }
    }
    cpu.cache = has_cache ? cpu.cache : 0;
    return cpu;
}

}  // namespace

Result<Topology> read_topology(const std::string& synthetic, const std::vector<int>& allowed) {
    const Hwloc hwloc;
    if (!hwloc.is_complete()) {
        return Error{ErrorCode::NotFound,
                     fmt::format("the library {} (hwloc 2) cannot be loaded; install it, Debian's "
                                 "package is libhwloc15",
                                 kLibrary)};
    }
    hwloc_topology_t raw = nullptr;
    if (hwloc.init(&raw) != 0) {
        return Error{ErrorCode::System, "hwloc cannot be started: out of memory?"};
    }
    const std::unique_ptr<hwloc_topology, decltype(&hwloc_topology_destroy)> topology{
        raw, hwloc.destroy};
    // A core's lowest thread names it, whether we may run there or not.
    if (hwloc.set_flags(raw, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED) != 0 ||
        (!synthetic.empty() && hwloc.set_synthetic(raw, synthetic.c_str()) != 0) ||
        hwloc.load(raw) != 0) {
        return Error{ErrorCode::System, "hwloc cannot tell the machine's CPUs; is /sys mounted?"};
    }
    Topology result;
    const int depth = hwloc.depth_of(raw, HWLOC_OBJ_PU);
    for (unsigned i = 0; i < hwloc.count_at(raw, depth); ++i) {
        Cpu cpu = describe(hwloc, hwloc.object_at(raw, depth, i));
        cpu.is_allowed = std::binary_search(allowed.begin(), allowed.end(), cpu.index);
        result.cpus.push_back(cpu);
    }
    std::sort(result.cpus.begin(), result.cpus.end(),
              [](const Cpu& left, const Cpu& right) { return left.index < right.index; });
    return result;
}

}  // namespace ddprun::launcher
