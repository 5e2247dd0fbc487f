using Status = int;
using Handle = void *;
using Address = unsigned long long;

//STATUS
// The driver: a shared library that is looked up when the program runs. Functions throw what they report.
class Driver {
    void *library = nullptr;

  public:
    template <class... P>
    struct Function {
        const Driver *driver;
        const char *symbol;
        Status (*pointer)(P...);

        void expect(Status status) const {
            if (status != 0) throw MachineError(std::string(symbol) + ": " + status_text(*driver, status));
        }

        void operator()(P... arguments) const { expect(pointer(arguments...)); }
    };

#define DECLARE(name, symbol, ...) Function<__VA_ARGS__> name{this, #symbol, nullptr};
    DRIVER_FUNCTIONS(DECLARE)
#undef DECLARE

    Driver() {
        for (const char *path : DRIVER_LIBRARIES)
            if (library == nullptr) library = dlopen(path, RTLD_NOW);
        if (library == nullptr) throw MachineError(DRIVER_MISSING);
#define FIND(name, symbol, ...) find(name);
        DRIVER_FUNCTIONS(FIND)
#undef FIND
        init(DRIVER_FLAGS);
    }

    Driver(const Driver &) = delete;

    // Looks a function up by its symbol.
    template <class F>
    void find(F &function) const {
        void *const found = dlsym(library, function.symbol);
        if (found == nullptr) throw MachineError(std::string("the driver is too old: it has no `") + function.symbol + "`");
        std::memcpy(&function.pointer, &found, sizeof found);
    }
};

inline const Driver &driver() {
    static const Driver found;
    return found;
}

// The stream of all work: the default one, unless another is set before a model is made.
inline Handle stream = nullptr;

inline char *pointer(Address address) { return reinterpret_cast<char *>(static_cast<std::uintptr_t>(address)); }

inline Address address(const char *pointer) { return static_cast<Address>(reinterpret_cast<std::uintptr_t>(pointer)); }

// Machine code of a kernel: its bytes and entry point, the warps of a program, the threads of a warp, bytes of shared memory.
struct Code {
    const char *symbol;
    const unsigned char *bytes;
    std::size_t count;
    unsigned warps, lanes, shared;
};

// A kernel in memory of the device, and the threads of a program.
struct Loaded {
    Handle function = nullptr;
    unsigned threads = 0, arguments = 0;
};

// The place of an argument among those of a launch, in bytes.
struct Span {
    unsigned begin, bytes;
};
