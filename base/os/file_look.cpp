#include "base/os/file_look.hpp"

#include <pthread.h>

#include <system_error>

#include "base/check.hpp"
#include "base/os/signals_blocked.hpp"

namespace ddprun {

FileLook::FileLook(boost::asio::io_context& io) : shared_(std::make_shared<Shared>(io)) {}

FileLook::~FileLook() {
    shared_->close();
    if (is_asked()) {
        // It may hang in the kernel for ever; it touches only data that no other thread uses.
        thread_.detach();  // tidy: allow detach
    }
}

void FileLook::Shared::post(std::function<void()> handler) {
    const std::lock_guard lock(mutex_);
    if (io_ != nullptr) {
        boost::asio::post(*io_, std::move(handler));
    }
}

void FileLook::Shared::close() {
    const std::lock_guard lock(mutex_);
    io_ = nullptr;
}

bool FileLook::run(std::function<void()> work) {
    DDP_CHECK(!is_asked());
    const SignalsBlocked blocked;
    try {
        thread_ = std::thread(std::move(work));
    } catch (const std::system_error&) {
        return false;
    }
    ::pthread_setname_np(thread_.native_handle(), "file look");
    return true;
}

}  // namespace ddprun
