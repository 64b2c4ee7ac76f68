"""Production traces that benchmarks replay: files in the folder that SLOSERVE_DATA names."""

AZURE_CONV = "azure2023_conv_first_two_thirds"
AZURE_CODE = "azure2023_code_first_two_thirds"
MOONCAKE = "mooncake_conversation_first_half"
SERVEGEN_10H, SERVEGEN_19H = "servegen_mlarge_day2_10h", "servegen_mlarge_day2_19h"
TRACES = {
    "azure-conv": AZURE_CONV,
    "azure-code": AZURE_CODE,
    "mooncake": MOONCAKE,
    "servegen-10h": SERVEGEN_10H,
    "servegen-19h": SERVEGEN_19H,
}
