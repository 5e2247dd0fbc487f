//! Level Zero in printed programs.

use super::names::STATUSES;
use super::{GPU_ONLY, LIBRARY, MISSING};
use inrush_driver::cpp::Text;
use std::fmt::Write;

/// The functions that programs call: names, symbols, parameters.
const FUNCTIONS: &[(&str, &str, &str)] = &[
    ("init", "zeInit", "unsigned"),
    ("driver_get", "zeDriverGet", "unsigned *, Handle *"),
    ("device_get", "zeDeviceGet", "Handle, unsigned *, Handle *"),
    (
        "context_create",
        "zeContextCreate",
        "Handle, const void *, Handle *",
    ),
    (
        "module_create",
        "zeModuleCreate",
        "Handle, Handle, const void *, Handle *, Handle *",
    ),
    (
        "log_text",
        "zeModuleBuildLogGetString",
        "Handle, std::size_t *, char *",
    ),
    ("log_destroy", "zeModuleBuildLogDestroy", "Handle"),
    (
        "kernel_create",
        "zeKernelCreate",
        "Handle, const void *, Handle *",
    ),
    (
        "kernel_properties",
        "zeKernelGetProperties",
        "Handle, void *",
    ),
    (
        "group_size",
        "zeKernelSetGroupSize",
        "Handle, unsigned, unsigned, unsigned",
    ),
    (
        "set_argument",
        "zeKernelSetArgumentValue",
        "Handle, unsigned, std::size_t, const void *",
    ),
    (
        "list_create",
        "zeCommandListCreateImmediate",
        "Handle, Handle, const void *, Handle *",
    ),
    (
        "list_synchronize",
        "zeCommandListHostSynchronize",
        "Handle, unsigned long long",
    ),
    (
        "append_launch",
        "zeCommandListAppendLaunchKernel",
        "Handle, Handle, const unsigned *, Handle, unsigned, Handle *",
    ),
    (
        "append_copy",
        "zeCommandListAppendMemoryCopy",
        "Handle, void *, const void *, std::size_t, Handle, unsigned, Handle *",
    ),
    (
        "allocate",
        "zeMemAllocDevice",
        "Handle, const void *, std::size_t, std::size_t, Handle, Handle *",
    ),
    ("free", "zeMemFree", "Handle, void *"),
];

/// Returns the declarations of this driver for printed C++.
pub(crate) fn cpp() -> String {
    let mut cases = String::new();
    for (status, text) in STATUSES {
        _ = writeln!(cases, "        case {status:#x}: text = {text:?}; break;");
    }
    let status = format!(
        "// Returns the name of a status.\ntemplate <class D>\nstd::string status_text(const D &, Status status) {{\n    \
         const char *text = \"failed\";\n    switch (static_cast<unsigned>(status)) {{\n{cases}        default: break;\n    }}\n    \
         char number[16];\n    std::snprintf(number, sizeof number, \"0x%x\", static_cast<unsigned>(status));\n    \
         return std::string(text) + \" (\" + number + \")\";\n}}\n\n"
    );
    Text {
        name: "Level Zero",
        functions: FUNCTIONS,
        flags: GPU_ONLY,
        libraries: &[LIBRARY],
        missing: MISSING,
        // Groups are counted by numbers of 32 bits, as programs are.
        max_threads: u64::MAX,
        status: &status,
        text: include_str!("zero.cpp"),
    }
    .print()
}
