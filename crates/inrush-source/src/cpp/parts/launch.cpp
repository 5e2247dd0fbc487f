// Threads that share the parts of a step. They wait between steps.
class Team {
    std::vector<std::thread> threads;
    std::mutex mutex;
    std::condition_variable begin, end;
    const std::function<void(i64)> *work = nullptr;
    std::exception_ptr failure;
    i64 next = 0, parts = 0, open = 0;
    bool stops = false;

    // Takes parts until none is left.
    void help(std::unique_lock<std::mutex> &lock) {
        while (next < parts) {
            const i64 part = next++;
            lock.unlock();
            std::exception_ptr caught;
            try {
                (*work)(part);
            } catch (...) {
                caught = std::current_exception();
            }
            lock.lock();
            if (caught) failure = caught;
            if (--open == 0) end.notify_all();
        }
    }

    void stop() {
        {
            const std::lock_guard<std::mutex> lock(mutex);
            stops = true;
        }
        begin.notify_all();
        for (std::thread &t : threads) t.join();
    }

  public:
    explicit Team(i64 count) {
        try {
            for (i64 k = 1; k < count; k++)
                threads.emplace_back([this] {
                    std::unique_lock<std::mutex> lock(mutex);
                    while (!stops) {
                        help(lock);
                        if (!stops) begin.wait(lock);
                    }
                });
        } catch (const std::system_error &error) {
            stop();
            throw MachineError(std::string("cannot start a thread: ") + error.what());
        }
    }

    Team(const Team &) = delete;

    ~Team() { stop(); }

    i64 size() const { return static_cast<i64>(threads.size()) + 1; }

    // Calls `f` with each number below `count`, on all threads, and throws what one of the calls throws.
    void run(i64 count, const std::function<void(i64)> &f) {
        if (count <= 1 || threads.empty()) {
            for (i64 k = 0; k < count; k++) f(k);
            return;
        }
        std::unique_lock<std::mutex> lock(mutex);
        work = &f, failure = nullptr, next = 0, parts = count, open = count;
        begin.notify_all();
        help(lock);
        end.wait(lock, [this] { return open == 0; });
        if (failure) std::rethrow_exception(failure);
    }
};

// A loop nest over units of work, with the errors of its checks: it returns 0 or the number of the check that failed.
struct Kernel {
    int (*function)(char *const *buffers, const i64 *sizes, i64 begin, i64 end);
    std::vector<const char *> checks;
};

// A loop nest over sums of products, which stores results: those of rows m0..m1 and columns n0..n1 of a product of the batch.
using Epilogue = void (*)(char *const *buffers, const i64 *sizes, const void *sums, i64 row, i64 batch, i64 m0, i64 m1, i64 n0, i64 n1);

// Work below which a second thread does not pay off, in bytes moved or their equivalent.
constexpr double SERIAL_COST = 1 << 16;

inline std::vector<i64> numbers(const Sizes &sizes) {
    std::vector<i64> out;
    for (const Size &n : sizes) out.push_back(n.value);
    return out;
}

// Runs `units` units of a kernel, each of this cost. Each thread gets `scratch` bytes as the last buffer. A serial kernel runs on one
// thread, because its stores may collide.
inline void launch(Team &team, const Kernel &kernel, std::vector<char *> buffers, const Sizes &sizes, Size units, Size cost, Size scratch = 0,
                   bool serial = false) {
    if (units.value <= 0) return;
    const std::vector<i64> integers = numbers(sizes);
    const bool is_small = serial || static_cast<double>(units.value) * static_cast<double>(cost.value) <= SERIAL_COST;
    const i64 step = is_small ? units.value : (units.value - 1) / team.size() + 1;
    std::atomic<int> failed{0};
    buffers.push_back(nullptr);
    team.run((units.value - 1) / step + 1, [&](i64 part) {
        std::vector<char *> mine = buffers;
        std::shared_ptr<char> own;
        if (scratch.value > 0) mine.back() = (own = allocate(scratch)).get();
        const i64 begin = part * step;
        const int code = kernel.function(mine.data(), integers.data(), begin, std::min(begin + step, units.value));
        if (code != 0) failed = code;
    });
    if (failed != 0) throw CheckError(kernel.checks.at(static_cast<std::size_t>(failed - 1)));
}

// Inputs and outputs of `main` are where calls take and give them.
inline Values placed(Values values) { return values; }

inline Values fetched(Values values) { return values; }

inline void finish() {}

const char *const PLACE = "--threads";

inline i64 default_place() { return std::max<i64>(1, std::thread::hardware_concurrency()); }

inline void expect_place(i64 threads) {
    if (threads < 1 || threads > 4096) throw InputError("--threads must be 1 to 4096");
}
