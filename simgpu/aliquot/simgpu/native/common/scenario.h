/*
 * The layout of the scenario file: one simulated machine's GPUs, shared by every process that loads the simulated
 * libraries and by the Python control tool (aliquot.simgpu). The file is the hardware: what a process
 * allocates through libcuda is booked here, and libnvidia-ml answers from here.
 *
 * Everything has a fixed size and natural alignment, so that the ctypes mirror in layout.py has the same
 * offsets. Change a structure here and there together, and raise SCENARIO_VERSION.
 *
 * All fields are read and written under `mutex`, except the ones marked (atomic).
 */
#ifndef ALIQUOT_SCENARIO_H
#define ALIQUOT_SCENARIO_H

#include <pthread.h>
#include <stdint.h>

#define SCENARIO_MAGIC UINT64_C(0x5550474d49535141) /* "AQSIMGPU", little endian */
#define SCENARIO_VERSION 1u

#define NO_INSTANCE UINT32_MAX /* no MIG instance: the account or event belongs to the whole GPU */
#define DERIVED (-1)           /* the value follows from what runs on the device */
#define UNSUPPORTED (-2)       /* the device has no such sensor: NVML_ERROR_NOT_SUPPORTED */

enum {
    DEVICES_MAX = 16,
    ACCOUNTS_MAX = 256, /* processes on one device */
    EVENTS_MAX = 256,   /* ring: a reader that falls further behind misses the oldest */
    RULES_MAX = 64,
    LIMITS_MAX = 256,
    SHARED_MAX = 256,
    HOLDERS_MAX = 8,
    CGROUP_DEPTH = 12,
    WINDOWS = 11, /* of a tenth of a second: one that goes on and a whole second before it */
    PROFILES_MAX = 8,
    INSTANCES_MAX = 8,
    LINKS_MAX = 18,
    ECC_LOCATIONS = 8,
};

enum account_state { ACCOUNT_FREE = 0, ACCOUNT_PROCESS = 1, ACCOUNT_STICKY = 2 };
enum account_type { TYPE_COMPUTE = 1, TYPE_GRAPHICS = 2, TYPE_MPS = 4 };
enum account_flag { ACCOUNT_MEMORY_UNKNOWN = 1 };

/* One process on one device (or MIG instance). Its identity is (pid, start_ticks): a reused PID is somebody else. */
struct sim_account {
    uint32_t state; /* enum account_state; STICKY entries are never reaped */
    int32_t pid;
    uint64_t start_ticks; /* field 22 of /proc/pid/stat */
    uint64_t stack_start; /* field 28: changes with exec, which drops the GPU memory but keeps the start time */
    uint32_t gpu_instance;
    uint32_t compute_instance;
    uint32_t types; /* enum account_type */
    uint32_t flags; /* enum account_flag */
    uint64_t memory_bytes;  /* contexts, allocations, modules */
    uint64_t context_bytes; /* the contexts' part of memory_bytes */
    uint64_t managed_bytes; /* managed memory resident on the device, apart from memory_bytes: it can be evicted */
    uint64_t peak_bytes;
    uint64_t cgroup_device; /* the process's cgroup v2 directory, as stat(2) identifies it; 0 where unknown */
    uint64_t cgroup_inodes[CGROUP_DEPTH]; /* its own first, then those above it; 0: no more */
    uint64_t launches;      /* (atomic) */
    int32_t sm_percent;     /* DERIVED: from busy_ns */
    int32_t memory_percent; /* of the bandwidth */
    uint64_t window;        /* the tenth of a second (CLOCK_MONOTONIC) that busy_ns[window % WINDOWS] counts */
    uint64_t busy_ns[WINDOWS];
    uint64_t used_ns;       /* of the whole card's time, since the account was opened */
    uint64_t lag_ns;        /* its own time (see sharing.c) is so far behind CLOCK_MONOTONIC */
    uint64_t queued_ns;     /* in its own time: when all that it has queued is done */
    uint64_t server;        /* of MPS; 0: it takes turns by itself */
    uint64_t pinned_bytes;  /* MPS: the most that it may hold; 0: no limit */
    uint32_t thread_percent; /* MPS: of the multiprocessors at most */
    uint32_t reserved;
    uint64_t since_us; /* CLOCK_REALTIME of the first context */
    char name[64];
};

struct sim_profile { /* a MIG GPU-instance profile of this model */
    uint32_t in_use;
    uint32_t kind;        /* NVML_GPU_INSTANCE_PROFILE_*: what callers ask for */
    uint32_t id;          /* what creation takes */
    uint32_t slices;      /* compute slices */
    uint32_t memory_slices;
    uint32_t count_max;
    uint32_t starts;      /* bit n: a placement may start at memory slice n */
    uint32_t multiprocessors;
    uint32_t copy_engines;
    uint32_t decoders;
    uint32_t encoders;
    uint32_t jpegs;
    uint32_t ofas;
    uint32_t reserved;
    uint64_t memory_mib;
    char name[32];
};

struct sim_gpu_instance {
    uint32_t in_use;
    uint32_t id;
    uint32_t profile; /* index into profiles */
    uint32_t start;   /* memory slice */
    uint64_t serial;  /* tells a new instance from a destroyed one in the same slot */
};

struct sim_compute_instance { /* with its GPU instance: one MIG device */
    uint32_t in_use;
    uint32_t id;
    uint32_t gpu_instance; /* slot of the parent */
    uint32_t slices;
    uint32_t start; /* compute slice within the parent */
    uint32_t reserved;
    uint64_t serial;
    char uuid[64];
};

struct sim_link { /* NVLink */
    uint32_t active;
    int32_t remote_device; /* index, or -1: a switch */
    uint64_t errors[5];    /* replay, recovery, CRC flit, CRC data, ECC data */
};

struct sim_device {
    char name[96];
    char uuid[80];
    char serial[32];
    char board_part_number[32];
    char vbios[32];
    uint32_t pci_domain, pci_bus, pci_device, pci_id, pci_subsystem_id;
    uint32_t minor;
    uint32_t brand, architecture;
    uint32_t compute_major, compute_minor;
    uint32_t multiprocessors, cores, memory_bus_bits;
    uint32_t numa_node, pcie_switch, host_bridge; /* topology: equal means shared */
    uint32_t pcie_generation, pcie_width;
    uint64_t total_bytes, reserved_bytes, bar1_bytes, context_bytes;

    uint32_t lost;                     /* fell off the bus */
    uint32_t processes_memory_unknown; /* the driver answers N/A for every process */
    int32_t gpu_percent, memory_percent, encoder_percent, decoder_percent; /* DERIVED for the first two */
    int32_t temperature_c, memory_temperature_c, power_mw, fan_percent;    /* DERIVED, UNSUPPORTED */
    int32_t temperature_idle_c, temperature_slowdown_c, temperature_shutdown_c;
    uint32_t power_idle_mw, power_limit_mw, power_default_mw, power_min_mw, power_max_mw;
    uint32_t clock_sm_mhz, clock_sm_max_mhz, clock_memory_mhz, clock_memory_max_mhz;
    uint32_t pstate;
    uint32_t persistence_mode, compute_mode;
    uint64_t throttle_reasons;
    uint64_t energy_uj;       /* used up to energy_until_us */
    uint64_t energy_until_us; /* CLOCK_REALTIME */

    uint32_t ecc_mode, ecc_pending;
    uint64_t ecc[2][2][ECC_LOCATIONS]; /* [corrected, uncorrected][volatile, aggregate][location] */
    uint32_t remap_supported;          /* Ampere and later remap rows, older ones retire pages */
    uint32_t remapped_correctable, remapped_uncorrectable, remap_pending, remap_failure;
    uint32_t retired_single, retired_double, retired_pending;
    uint32_t recovery_action; /* NVML_GPU_RECOVERY_ACTION_* */
    uint32_t gpm_supported;

    uint32_t mig_supported, mig_mode, mig_pending, mig_without_reset;
    struct sim_profile profiles[PROFILES_MAX];
    struct sim_gpu_instance gpu_instances[INSTANCES_MAX];
    struct sim_compute_instance compute_instances[INSTANCES_MAX];

    uint32_t link_count;
    uint32_t link_mbps; /* per link and direction, MB/s */
    struct sim_link links[LINKS_MAX];

    uint64_t shared_out_ns; /* CLOCK_MONOTONIC: up to when its time has been given to accounts */
    uint64_t kernel_ns;     /* how long a kernel takes that does not say so itself */
    uint64_t wedged_server; /* of MPS: a client of it was killed with work queued; 0: none */
    uint32_t account_count; /* high-water mark of accounts */
    uint32_t contexts_spared; /* contexts don't count against limits of cgroups */
    struct sim_account accounts[ACCOUNTS_MAX];
};

struct sim_event {
    uint64_t type; /* nvmlEventType* */
    uint64_t data; /* the XID */
    uint32_t device, gpu_instance, compute_instance, reserved;
};

/* A fault for the calls that match: `call` is a symbol, a class of calls (see inject.h) or "*". */
struct sim_rule {
    uint32_t in_use;
    int32_t device; /* -1: every device, and calls without one */
    int32_t error;  /* nvmlReturn_t or CUresult; 0: none */
    uint32_t hang;  /* (atomic) the call blocks until this is 0 */
    uint64_t latency_ns;
    char call[64];
};

struct sim_limit { /* nvmlDeviceSetMemoryLimits_v1 */
    uint32_t in_use;
    uint32_t device;
    uint64_t cgroup_device, cgroup_inode;
    uint64_t soft_bytes, hard_bytes;
    char path[256];
};

struct sim_holder {
    int32_t pid;
    uint32_t references;
    uint64_t start_ticks, stack_start;
};

/* Memory that several processes hold (IPC, exported handles): booked once, on its first living holder. */
struct sim_shared {
    uint32_t in_use, device, gpu_instance, reserved;
    uint64_t serial, bytes;
    struct sim_holder holders[HOLDERS_MAX];
};

struct scenario {
    uint64_t magic;
    uint32_t version;
    uint32_t header_bytes, device_bytes, account_bytes; /* sizeof of this, sim_device and sim_account */
    uint32_t device_count;
    uint32_t shared_count, limit_count; /* high-water marks */
    uint32_t limits_nested; /* limits of cgroups: 0 by the driver's own books, 1 by the kernel's dmem */
    union {
        pthread_mutex_t mutex; /* robust, process-shared */
        uint64_t mutex_room[8];
    };
    uint64_t rules_generation;   /* (atomic) raised after every change of rules */
    uint64_t events_written;     /* (atomic) */
    uint32_t events_futex;       /* (atomic) raised with events_written; waiters sleep on it */
    uint32_t cuda_version;       /* 13040 is 13.4 */
    uint64_t next_serial;
    uint64_t granularity_bytes;  /* allocations are booked in multiples of this */
    char driver_version[80];
    char nvml_version[80];
    char host[64];
    struct sim_rule rules[RULES_MAX];
    struct sim_event events[EVENTS_MAX];
    struct sim_limit limits[LIMITS_MAX];
    struct sim_shared shared[SHARED_MAX];
    struct sim_device devices[DEVICES_MAX];
};

#endif
