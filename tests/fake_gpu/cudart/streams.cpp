// Streams and events. A stream is a queue of tasks, and has a thread from its first task that must
// wait. An event is a mark that a task of a stream sets.

#include "tests/fake_gpu/cudart/streams.hpp"

#include <poll.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "tests/fake_gpu/cudart/devices.hpp"
#include "tests/fake_gpu/cudart/errors.hpp"
#include "tests/fake_gpu/machine/ledger.hpp"
#include "tests/fake_gpu/machine/settings.hpp"

struct CUstream_st {
    int device = 0;
    bool is_busy = false;
    bool has_thread = false;
    std::deque<fake_gpu::Task> tasks;
    std::condition_variable has_task;
};

namespace {

using Clock = std::chrono::steady_clock;

struct Mark {
    bool is_set = false;
    Clock::time_point at;
};

}  // namespace

struct CUevent_st {
    std::shared_ptr<Mark> mark;  ///< of the newest record; none: never recorded
};

namespace fake_gpu {

namespace {

/// The streams of this process. A stream lives as long as the process: LibTorch pools streams.
struct Streams {
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<std::unique_ptr<CUstream_st>> all;
    std::map<int, CUstream_st*> default_of_device;
};

Streams& streams() {
    // The object is never destroyed: threads of streams outlive main().
    static Streams& created = *std::make_unique<Streams>().release();
    return created;
}

/// The caller holds the lock of streams().
CUstream_st* add_stream(int device) {
    make_context(gpu_of(device));
    streams().all.push_back(std::make_unique<CUstream_st>());
    streams().all.back()->device = device;
    return streams().all.back().get();
}

CUstream_st& find(cudaStream_t stream) {
    if (stream != nullptr && stream != cudaStreamLegacy && stream != cudaStreamPerThread) {
        return *stream;
    }
    const std::lock_guard lock(streams().mutex);
    CUstream_st*& found = streams().default_of_device[current_device()];
    if (found == nullptr) {
        found = add_stream(current_device());
    }
    return *found;
}

bool is_idle(const CUstream_st& stream) {
    return stream.tasks.empty() && !stream.is_busy;
}

void delay() {
    using std::chrono::milliseconds;
    const auto time = std::chrono::duration_cast<milliseconds>(settings().task_delay);
    const timespec rest{.tv_sec = 0,
                        .tv_nsec = std::chrono::nanoseconds(settings().task_delay - time).count()};
    (void)poll(nullptr, 0, static_cast<int>(time.count()));
    (void)ppoll(nullptr, 0, &rest, nullptr);
}

/// A broken GPU runs nothing.
void run(const Task& task) {
    static std::atomic<long> number = 0;
    if (number++ == settings().broken_task) {
        cudaFakeGpuBreak();
    }
    if (!is_broken()) {
        task();
    }
}

[[noreturn]] void work_off(CUstream_st& stream) {
    std::unique_lock lock(streams().mutex);
    for (;;) {
        stream.has_task.wait(lock, [&] { return !stream.tasks.empty() && !stream.is_busy; });
        Task task = std::move(stream.tasks.front());
        stream.tasks.pop_front();
        stream.is_busy = true;
        lock.unlock();
        delay();
        run(task);
        task = nullptr;
        lock.lock();
        stream.is_busy = false;
        streams().changed.notify_all();
    }
}

/// The thread blocks all signals, which are for the program's threads.
void start_thread(CUstream_st& stream) {
    sigset_t all;
    sigset_t before;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    std::thread([&stream] { work_off(stream); }).detach();
    (void)pthread_sigmask(SIG_SETMASK, &before, nullptr);
    stream.has_thread = true;
}

void wait_until_idle(CUstream_st& stream) {
    std::unique_lock lock(streams().mutex);
    streams().changed.wait(lock, [&] { return is_idle(stream) || is_broken(); });
}

/// Returns whether nothing is left to wait for: the mark is set, or an event has no mark.
bool is_over(const std::shared_ptr<Mark>& mark) {
    return mark == nullptr || mark->is_set;
}

void set(Mark& mark) {
    const std::lock_guard lock(streams().mutex);
    mark.is_set = true;
    mark.at = Clock::now();
    streams().changed.notify_all();
}

void wait_for_mark(const std::shared_ptr<Mark>& mark) {
    std::unique_lock lock(streams().mutex);
    streams().changed.wait(lock, [&] { return is_over(mark) || is_broken(); });
}

std::shared_ptr<Mark> mark_of(cudaEvent_t event) {
    const std::lock_guard lock(streams().mutex);
    return event->mark;
}

}  // namespace

void submit(cudaStream_t handle, Runner runner, Task task) {
    CUstream_st& stream = find(handle);
    const bool is_delayed = settings().task_delay.count() > 0;
    std::unique_lock lock(streams().mutex);
    if (runner == Runner::Anybody && !is_delayed && is_idle(stream)) {
        stream.is_busy = true;
        lock.unlock();
        run(task);
        lock.lock();
        stream.is_busy = false;
    } else {
        stream.tasks.push_back(std::move(task));
        if (!stream.has_thread) {
            start_thread(stream);
        }
    }
    stream.has_task.notify_one();
    streams().changed.notify_all();
}

void wait_for(cudaStream_t stream) {
    wait_until_idle(find(stream));
}

void wait_for_all_streams_of(int device) {
    std::vector<CUstream_st*> ours;
    {
        const std::lock_guard lock(streams().mutex);
        for (const auto& stream : streams().all) {
            if (stream->device == device) {
                ours.push_back(stream.get());
            }
        }
    }
    for (CUstream_st* const stream : ours) {
        wait_until_idle(*stream);
    }
}

}  // namespace fake_gpu

using fake_gpu::streams;

extern "C" {

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned /*flags*/,
                                         int /*priority*/) {
    if (!fake_gpu::is_visible(fake_gpu::current_device())) {
        return fake_gpu::fail(cudaErrorNoDevice);
    }
    const std::lock_guard lock(streams().mutex);
    *stream = fake_gpu::add_stream(fake_gpu::current_device());
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
    return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
    return cudaStreamCreateWithPriority(stream, 0, 0);
}

cudaError_t cudaStreamDestroy(cudaStream_t /*stream*/) {
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    fake_gpu::wait_for(stream);
    return fake_gpu::unless_broken();
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
    const CUstream_st& stream = fake_gpu::find(handle);
    const std::lock_guard lock(streams().mutex);
    if (fake_gpu::is_broken()) {
        return fake_gpu::unless_broken();
    }
    return fake_gpu::is_idle(stream) ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaStreamGetPriority(cudaStream_t /*stream*/, int* priority) {
    *priority = 0;
    return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t /*stream*/, cudaStreamCaptureStatus* status) {
    *status = cudaStreamCaptureStatusNone;
    return cudaSuccess;
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t /*stream*/, cudaStreamCaptureStatus* status,
                                     unsigned long long* id, cudaGraph_t* graph,
                                     const cudaGraphNode_t** /*dependencies*/,
                                     const cudaGraphEdgeData** /*edges*/, std::size_t* count) {
    *status = cudaStreamCaptureStatusNone;
    if (id != nullptr) {
        *id = 0;
    }
    if (graph != nullptr) {
        *graph = nullptr;
    }
    if (count != nullptr) {
        *count = 0;
    }
    return cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* /*mode*/) {
    return cudaSuccess;
}

cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void* data,
                                  unsigned /*flags*/) {
    fake_gpu::submit(stream, fake_gpu::Runner::StreamThread,
                     [=] { callback(stream, cudaSuccess, data); });
    return fake_gpu::unless_broken();
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
    fake_gpu::submit(stream, fake_gpu::Runner::StreamThread, [=] { function(data); });
    return fake_gpu::unless_broken();
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned /*flags*/) {
    const std::shared_ptr<Mark> mark = fake_gpu::mark_of(event);
    {
        const std::lock_guard lock(streams().mutex);
        if (fake_gpu::is_over(mark)) {
            return fake_gpu::unless_broken();
        }
    }
    fake_gpu::submit(stream, fake_gpu::Runner::StreamThread,
                     [mark] { fake_gpu::wait_for_mark(mark); });
    return fake_gpu::unless_broken();
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned /*flags*/) {
    *event = std::make_unique<CUevent_st>().release();
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
    return cudaEventCreateWithFlags(event, 0);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    const std::unique_ptr<CUevent_st> owned(event);
    return cudaSuccess;
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned /*flags*/) {
    const auto mark = std::make_shared<Mark>();
    {
        const std::lock_guard lock(streams().mutex);
        event->mark = mark;
    }
    fake_gpu::submit(stream, fake_gpu::Runner::Anybody, [mark] { fake_gpu::set(*mark); });
    return fake_gpu::unless_broken();
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    return cudaEventRecordWithFlags(event, stream, 0);
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    const std::lock_guard lock(streams().mutex);
    if (fake_gpu::is_broken()) {
        return fake_gpu::unless_broken();
    }
    return fake_gpu::is_over(event->mark) ? cudaSuccess : fake_gpu::fail(cudaErrorNotReady);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    fake_gpu::wait_for_mark(fake_gpu::mark_of(event));
    return fake_gpu::unless_broken();
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
    const std::lock_guard lock(streams().mutex);
    if (start->mark == nullptr || end->mark == nullptr) {
        return fake_gpu::fail(cudaErrorInvalidResourceHandle);
    }
    if (!start->mark->is_set || !end->mark->is_set) {
        return fake_gpu::fail(cudaErrorNotReady);
    }
    *milliseconds =
        std::chrono::duration<float, std::milli>(end->mark->at - start->mark->at).count();
    return cudaSuccess;
}
}
