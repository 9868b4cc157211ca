// A driver's library with three GPUs, of which the second is divided in two and the third answers
// nothing; in NVML's ABI.

#include <array>
#include <cstdio>
#include <cstring>

namespace {

constexpr int kSuccess = 0;
constexpr int kNotSupported = 3;

struct Device {
    const char* uuid;
    unsigned bus;
    bool has_mig;
};

std::array<Device, 5> devices = {Device{"GPU-11", 0x3b, false}, Device{"GPU-22", 0xaf, true},
                                 Device{nullptr, 0, false}, Device{"MIG-1", 0, false},
                                 Device{"MIG-2", 0, false}};

struct PciInfo {
    std::array<char, 16> legacy_bus_id;
    unsigned domain;
    unsigned bus;
    unsigned device;
    unsigned device_id;
    unsigned subsystem_id;
    std::array<char, 32> bus_id;
};

}  // namespace

extern "C" {

int nvmlInit_v2() {
    return kSuccess;
}

int nvmlShutdown() {
    return kSuccess;
}

int nvmlDeviceGetCount_v2(unsigned* count) {
    *count = 3;
    return kSuccess;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device** device) {
    *device = &devices.at(index);
    return kSuccess;
}

int nvmlDeviceGetUUID(Device* device, char* text, unsigned size) {
    if (device->uuid == nullptr) {
        return kNotSupported;
    }
    std::snprintf(text, size, "%s", device->uuid);
    return kSuccess;
}

int nvmlDeviceGetPciInfo_v3(Device* device, PciInfo* info) {
    if (device->uuid == nullptr) {
        return kNotSupported;
    }
    std::memset(info, 0x7f, sizeof *info);
    info->domain = 1;
    info->bus = device->bus;
    info->device = 0;
    return kSuccess;
}

int nvmlDeviceGetMigMode(Device* device, unsigned* current, unsigned* pending) {
    *current = device->has_mig ? 1 : 0;
    *pending = 0;
    return device->uuid == nullptr ? kNotSupported : kSuccess;
}

int nvmlDeviceGetMaxMigDeviceCount(Device* /*device*/, unsigned* count) {
    *count = 7;
    return kSuccess;
}

int nvmlDeviceGetTotalEccErrors(Device* device, int kind, int since, unsigned long long* count) {
    constexpr int kUncorrected = 1;
    constexpr int kSinceDriverLoad = 0;
    *count = kind == kUncorrected && since == kSinceDriverLoad ? 7 : 9999;
    return device->has_mig ? kSuccess : kNotSupported;
}

int nvmlDeviceGetRemappedRows(Device* device, unsigned* corrected, unsigned* uncorrected,
                              unsigned* pending, unsigned* failed) {
    *corrected = 3;
    *uncorrected = 4;
    *pending = device->has_mig ? 0 : 1;
    *failed = device->has_mig ? 1 : 0;
    return device->uuid == nullptr ? kNotSupported : kSuccess;
}

int nvmlDeviceGetMemoryInfo(Device* device, unsigned long long* total_free_used) {
    total_free_used[0] = 80ULL << 30;
    total_free_used[1] = 60ULL << 30;
    total_free_used[2] = 20ULL << 30;
    return device->uuid == nullptr ? kNotSupported : kSuccess;
}

int nvmlDeviceGetMigDeviceHandleByIndex(Device* /*device*/, unsigned index, Device** mig) {
    // Two of the seven places are taken, and not the first two.
    if (index != 2 && index != 5) {
        return kNotSupported;
    }
    *mig = &devices.at(index == 2 ? 3 : 4);
    return kSuccess;
}
}
