using Status = int;
using Handle = void *;
using Address = unsigned long long;

// The driver: a shared library that is looked up when the program runs. Functions throw what they report.
class Driver {
    void *library = nullptr;
    const char *name_of(Status status) const {
        const char *text = nullptr;
        return error_text.pointer(status, &text) == 0 && text != nullptr ? text : "unknown error";
    }

  public:
    template <class... P>
    struct Function {
        const Driver *driver;
        const char *symbol;
        Status (*pointer)(P...);

        void operator()(P... arguments) const {
            const Status status = pointer(arguments...);
            if (status != 0) throw MachineError(std::string(symbol) + ": " + driver->name_of(status) + " (" + std::to_string(status) + ")");
        }
    };

#define DECLARE(name, symbol, ...) Function<__VA_ARGS__> name{this, #symbol, nullptr};
    DRIVER_FUNCTIONS(DECLARE)
#undef DECLARE

    Driver() {
        for (const char *path : DRIVER_LIBRARIES)
            if (library == nullptr) library = dlopen(path, RTLD_NOW);
        if (library == nullptr) throw MachineError(DRIVER_MISSING);
        const auto find = [this](auto &function) {
            void *const found = dlsym(library, function.symbol);
            if (found == nullptr) throw MachineError(std::string("the driver is too old: it has no `") + function.symbol + "`");
            std::memcpy(&function.pointer, &found, sizeof found);
        };
#define FIND(name, symbol, ...) find(name);
        DRIVER_FUNCTIONS(FIND)
#undef FIND
        init(0);
    }

    Driver(const Driver &) = delete;
};

inline const Driver &driver() {
    static const Driver found;
    return found;
}
