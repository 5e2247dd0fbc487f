// Returns the driver's text for a status.
template <class D>
std::string status_text(const D &driver, Status status) {
    const char *text = nullptr;
    const bool is_known = driver.error_text.pointer(status, &text) == 0 && text != nullptr;
    return std::string(is_known ? text : "unknown error") + " (" + std::to_string(status) + ")";
}

