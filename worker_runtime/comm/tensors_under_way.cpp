#include "worker_runtime/comm/tensors_under_way.hpp"

#include <ATen/record_function.h>

#include <algorithm>
#include <exception>
#include <list>
#include <mutex>
#include <utility>

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "worker_runtime/comm/exception_text.hpp"

namespace ddprun::worker {

struct TensorsUnderWay::Entry {
    torch::Tensor tensor;
    Pending<void> pending;
    std::shared_ptr<std::optional<Error>> failure;  ///< its object's
    std::optional<c10::Stream> stream;              ///< of a GPU, where it was added

    /// On a GPU the stream where it was added waits, and the current one.
    Result<void> wait() {
        Result<void> done;
        try {
            if (!stream) {
                done = pending.wait();
            } else {
                const c10::impl::VirtualGuardImpl gpu(stream->device_type());
                const c10::Stream current = gpu.getStream(stream->device());
                const c10::StreamGuard on_its_stream(*stream);
                done = pending.wait();
                if (current != *stream) {
                    c10::Event written(stream->device_type());
                    written.record(*stream);
                    written.block(current);
                }
            }
        } catch (const std::exception& thrown) {
            done = Error{ErrorCode::System, first_line(thrown)};
        }
        if (!done && !*failure) {
            *failure = done.error();
        }
        return done;
    }
};

namespace {

/// LibTorch calls an observer for each operator while any thread has entries. LibTorch keeps it for
/// good: an observer of one thread is forgotten when autograd restores that thread's state.
class Observer {
public:
    explicit Observer(at::RecordFunctionCallback observe)
        : handle_(at::addGlobalCallback(observe.needsInputs(true))) {
        at::disableCallback(handle_);
    }
    void begin() {
        const std::lock_guard lock(mutex_);
        if (users_++ == 0) {
            at::reenableCallback(handle_);
        }
    }
    void end() {
        const std::lock_guard lock(mutex_);
        if (--users_ == 0) {
            at::disableCallback(handle_);
        }
    }

private:
    std::mutex mutex_;
    int users_ = 0;  ///< entries of all threads
    at::CallbackHandle handle_;
};

}  // namespace

/// The entries of a thread.
class TensorsUnderWay::OfThread {
public:
    static OfThread& here() {
        thread_local OfThread entries;
        return entries;
    }

    ~OfThread() {
        while (!entries_.empty()) {
            (void)take(entries_.begin());
        }
    }

    void add(Entry entry) {
        observer().begin();
        entries_.push_back(std::move(entry));
    }

    /// Waits for the entries that `is_wanted`; the first error.
    template <typename IsWanted>
    Result<void> wait(const IsWanted& is_wanted) {
        Result<void> first;
        // A wait may begin operators, which wait for other entries.
        for (auto found = std::ranges::find_if(entries_, is_wanted); found != entries_.end();
             found = std::ranges::find_if(entries_, is_wanted)) {
            if (Result<void> done = take(found).wait(); !done && first) {
                first = std::move(done);
            }
        }
        return first;
    }

private:
    static Observer& observer() {
        static Observer observes{
            at::RecordFunctionCallback(&before_operator).scopes({at::RecordScope::FUNCTION})};
        return observes;
    }

    Entry take(std::list<Entry>::iterator place) {
        Entry taken = std::move(*place);
        entries_.erase(place);
        observer().end();
        return taken;
    }

    static std::unique_ptr<at::ObserverContext> before_operator(
        const at::RecordFunction& operation) {
        OfThread& entries = here();
        for (const c10::IValue& input : operation.inputs()) {
            if (entries.entries_.empty()) {
                break;
            }
            if (input.isTensor()) {
                entries.before_use_of(input.toTensor());
            } else if (input.isTensorList()) {
                for (const torch::Tensor& tensor : input.toTensorVector()) {
                    entries.before_use_of(tensor);
                }
            }
        }
        return nullptr;
    }

    void before_use_of(const torch::Tensor& tensor) {
        if (tensor.defined() && tensor.has_storage()) {
            // The object of the entry keeps the error.
            (void)wait([&](const Entry& entry) { return entry.tensor.is_alias_of(tensor); });
        }
    }

    std::list<Entry> entries_;
};

TensorsUnderWay::~TensorsUnderWay() {
    if (std::uncaught_exceptions() == 0) {
        (void)wait();
    }
}

void TensorsUnderWay::add(const torch::Tensor& tensor, Pending<void> pending) {
    std::optional<c10::Stream> stream;
    if (!tensor.is_cpu()) {
        stream = c10::impl::VirtualGuardImpl(tensor.device().type()).getStream(tensor.device());
    }
    OfThread::here().add(
        {.tensor = tensor, .pending = std::move(pending), .failure = failure_, .stream = stream});
}

Result<void> TensorsUnderWay::wait() {
    (void)OfThread::here().wait([this](const Entry& entry) { return entry.failure == failure_; });
    const std::optional<Error> failure = std::exchange(*failure_, std::nullopt);
    return failure ? Result<void>(*failure) : Result<void>();
}

Result<void> TensorsUnderWay::wait_for_all() {
    return OfThread::here().wait([](const Entry& /*entry*/) { return true; });
}

}  // namespace ddprun::worker
