/* A library with NVML's binary interface, as NVIDIA's nvml.h (13.4) states it, and one GPU of fixed
 * figures. pynvml loads it as it loads a driver's, so what the reader hands to pynvml and takes from
 * it is checked without a GPU. It counts what must be paired: initializations and GPM samples.
 */
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };
enum { TYPE_DOUBLE, TYPE_UINT, TYPE_ULONG, TYPE_ULONGLONG, TYPE_SLONGLONG, TYPE_INT, TYPE_USHORT };

typedef struct { int number; } Device;
typedef union {
    double dVal; int siVal; unsigned uiVal; unsigned long ulVal;
    unsigned long long ullVal; long long sllVal; unsigned short usVal;
} Value;
typedef struct {
    unsigned fieldId, scopeId; long long timestamp, latencyUsec;
    int valueType, nvmlReturn; Value value;
} FieldValue;
typedef struct { int taken; double dram, tensor; } GpmSample;
typedef struct { unsigned metricId; int nvmlReturn; double value; char *names[3]; } GpmMetric;
typedef struct {
    unsigned version, numMetrics; GpmSample *sample1, *sample2; GpmMetric metrics[477];
} GpmMetricsGet;
typedef struct { unsigned version, isSupportedDevice; } GpmSupport;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned gpu, memory; } Utilization;
typedef struct { unsigned version; int sensorType, temperature; } Temperature;
typedef struct { unsigned pid; unsigned long long used; unsigned gpuInstance, computeInstance; } Process;

static Device gpu = {7};
static int initialized, gpm_samples, gpm_taken;

int open_ends(void) { return initialized + gpm_samples; }

int nvmlInitWithFlags(unsigned flags) { initialized++; return flags ? INVALID_ARGUMENT : SUCCESS; }
int nvmlShutdown(void) { initialized--; return SUCCESS; }
const char *nvmlErrorString(int code) { return code ? "an error" : "success"; }

int nvmlDeviceGetHandleByUUID(const char *uuid, Device **device) {
    if (strcmp(uuid, "GPU-7")) return NOT_FOUND;
    *device = &gpu;
    return SUCCESS;
}

int nvmlDeviceGetFieldValues(Device *device, int count, FieldValue *values) {
    if (device != &gpu) return INVALID_ARGUMENT;
    for (int i = 0; i < count; i++) {
        FieldValue *field = &values[i];
        memset(&field->value, 0xEE, sizeof field->value); /* what is undefined is not read */
        field->nvmlReturn = SUCCESS;
        field->latencyUsec = 10 + i;
        int all_links = field->scopeId == 0xFFFFFFFFu;
        switch (field->fieldId) {
        case 186: field->valueType = TYPE_UINT; field->value.uiVal = 650123; break;
        case 83: field->valueType = TYPE_ULONGLONG; field->value.ullVal = 5000000000ULL; break;
        case 82: field->valueType = TYPE_INT; field->value.siVal = 71; break;
        case 4: field->valueType = TYPE_ULONG; field->value.ulVal = 2; break;
        case 74: field->valueType = TYPE_SLONGLONG; field->value.sllVal = 5000000000LL; break;
        case 75: field->valueType = TYPE_ULONGLONG; field->value.ullVal = 75; break;
        case 270: field->valueType = TYPE_USHORT; field->value.usVal = 7; break;
        case 271: field->valueType = TYPE_DOUBLE; field->value.dVal = 8; break;
        case 138: case 139: /* one link: 1 KiB; all of them: 40 KiB */
            field->valueType = TYPE_ULONGLONG;
            field->value.ullVal = all_links ? 40 : 1;
            break;
        default: field->nvmlReturn = NOT_SUPPORTED; /* 269: an older driver */
        }
    }
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(Device *device, Memory *memory) {
    *memory = (Memory){80ULL << 30, 10ULL << 30, 70ULL << 30};
    return device == &gpu ? SUCCESS : INVALID_ARGUMENT;
}

int nvmlDeviceGetUtilizationRates(Device *device, Utilization *use) {
    *use = (Utilization){97, 40};
    return device == &gpu ? SUCCESS : INVALID_ARGUMENT;
}

int nvmlDeviceGetClockInfo(Device *device, int type, unsigned *mhz) {
    *mhz = type == 1 ? 1755 : type == 2 ? 2619 : 0; /* the SMs', the memory's */
    return device == &gpu ? SUCCESS : INVALID_ARGUMENT;
}

int nvmlDeviceGetTemperatureV(Device *device, Temperature *temperature) {
    if (device != &gpu || temperature->version != (sizeof *temperature | 1u << 24)) return INVALID_ARGUMENT;
    temperature->temperature = temperature->sensorType == 0 ? 61 : 0;
    return SUCCESS;
}

int nvmlDeviceGetCurrentClocksEventReasons(Device *device, unsigned long long *reasons) {
    *reasons = 0x4;
    return device == &gpu ? SUCCESS : INVALID_ARGUMENT;
}

int nvmlDeviceGetComputeRunningProcesses_v3(Device *device, unsigned *count, Process *processes) {
    unsigned room = *count;
    *count = 2;
    if (room < 2 || device != &gpu) return INSUFFICIENT_SIZE;
    processes[0] = (Process){11, 60ULL << 30, 0, 0};
    processes[1] = (Process){99, 5ULL << 30, 0, 0};
    return SUCCESS;
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(Device *device, unsigned *count, Process *processes) {
    (void)processes;
    *count = 0;
    return device == &gpu ? SUCCESS : INVALID_ARGUMENT;
}

int nvmlGpmQueryDeviceSupport(Device *device, GpmSupport *support) {
    if (device != &gpu || support->version != 1) return INVALID_ARGUMENT;
    support->isSupportedDevice = 1;
    return SUCCESS;
}

int nvmlGpmSampleAlloc(GpmSample **sample) {
    gpm_samples++;
    *sample = calloc(1, sizeof **sample);
    return SUCCESS;
}

int nvmlGpmSampleFree(GpmSample *sample) {
    gpm_samples--;
    free(sample);
    return SUCCESS;
}

int nvmlGpmSampleGet(Device *device, GpmSample *sample) {
    if (device != &gpu || !sample) return INVALID_ARGUMENT;
    gpm_taken++;
    *sample = (GpmSample){gpm_taken, 60.0 * gpm_taken, 30.0 * gpm_taken};
    return SUCCESS;
}

int nvmlGpmMetricsGet(GpmMetricsGet *question) {
    const GpmSample *older = question->sample1, *newer = question->sample2;
    if (question->version != 1 || !older->taken || newer->taken != older->taken + 1) return INVALID_ARGUMENT;
    for (unsigned i = 0; i < question->numMetrics; i++) {
        GpmMetric *metric = &question->metrics[i];
        metric->nvmlReturn = metric->metricId == 10 || metric->metricId == 5 ? SUCCESS : INVALID_ARGUMENT;
        metric->value = metric->metricId == 10 ? newer->dram - older->dram : newer->tensor - older->tensor;
    }
    return SUCCESS;
}
