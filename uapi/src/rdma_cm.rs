// SPDX-License-Identifier: MIT OR Apache-2.0
//! The commands and records of `/dev/infiniband/rdma_cm`, the connection manager's device file.
//!
//! Facts from `<rdma/rdma_user_cm.h>` and `<rdma/ib_user_sa.h>`, SPDX
//! `((GPL-2.0 WITH Linux-syscall-note) OR Linux-OpenIB)`; the storage of a socket address from
//! `<linux/socket.h>`, SPDX `GPL-2.0+ WITH Linux-syscall-note`; the numbers of events from
//! `<rdma/rdma_cma.h>` (rdma-core, `GPL-2.0 OR Linux-OpenIB`).
//!
//! A command is one write(2) of [`rdma_ucm_cmd_hdr`] and the command's struct. The answer is written to the
//! address in the field `response`.

use crate::be::{Be16, Be32, Be64};
use crate::cmd::ib_uverbs_ah_attr;
use crate::layout::{Bytes, abi_consts, abi_structs, abi_union};
use crate::rxe::sockaddr_in6;

abi_consts! {
    /// Version of this ABI.
    pub const RDMA_USER_CM_ABI_VERSION: u32 = 4;
    /// Room for private data in commands and events.
    pub const RDMA_MAX_PRIVATE_DATA: usize = 256;
    /// Creates an identifier: [`rdma_ucm_create_id`].
    pub const RDMA_USER_CM_CMD_CREATE_ID: u32 = 0;
    /// Destroys an identifier: [`rdma_ucm_destroy_id`].
    pub const RDMA_USER_CM_CMD_DESTROY_ID: u32 = 1;
    /// Binds to an IPv6 address: [`rdma_ucm_bind_ip`].
    pub const RDMA_USER_CM_CMD_BIND_IP: u32 = 2;
    /// Resolves an IPv6 address: [`rdma_ucm_resolve_ip`].
    pub const RDMA_USER_CM_CMD_RESOLVE_IP: u32 = 3;
    /// Resolves the route: [`rdma_ucm_resolve_route`].
    pub const RDMA_USER_CM_CMD_RESOLVE_ROUTE: u32 = 4;
    /// Reads addresses and routes: [`rdma_ucm_query`].
    pub const RDMA_USER_CM_CMD_QUERY_ROUTE: u32 = 5;
    /// Sends a connection request: [`rdma_ucm_connect`].
    pub const RDMA_USER_CM_CMD_CONNECT: u32 = 6;
    /// Listens: [`rdma_ucm_listen`].
    pub const RDMA_USER_CM_CMD_LISTEN: u32 = 7;
    /// Accepts a request, or completes a connection: [`rdma_ucm_accept`].
    pub const RDMA_USER_CM_CMD_ACCEPT: u32 = 8;
    /// Rejects a request: [`rdma_ucm_reject`].
    pub const RDMA_USER_CM_CMD_REJECT: u32 = 9;
    /// Disconnects: [`rdma_ucm_disconnect`].
    pub const RDMA_USER_CM_CMD_DISCONNECT: u32 = 10;
    /// Reads the QP attributes for a state: [`rdma_ucm_init_qp_attr`].
    pub const RDMA_USER_CM_CMD_INIT_QP_ATTR: u32 = 11;
    /// Takes the next event: [`rdma_ucm_get_event`].
    pub const RDMA_USER_CM_CMD_GET_EVENT: u32 = 12;
    /// No kernel has it.
    pub const RDMA_USER_CM_CMD_GET_OPTION: u32 = 13;
    /// Sets an option: [`rdma_ucm_set_option`].
    pub const RDMA_USER_CM_CMD_SET_OPTION: u32 = 14;
    /// Reports an event of the QP: [`rdma_ucm_notify`].
    pub const RDMA_USER_CM_CMD_NOTIFY: u32 = 15;
    /// Joins the group of an IPv6 address: [`rdma_ucm_join_ip_mcast`].
    pub const RDMA_USER_CM_CMD_JOIN_IP_MCAST: u32 = 16;
    /// Leaves a group: [`rdma_ucm_destroy_id`].
    pub const RDMA_USER_CM_CMD_LEAVE_MCAST: u32 = 17;
    /// Moves an identifier to this file: [`rdma_ucm_migrate_id`].
    pub const RDMA_USER_CM_CMD_MIGRATE_ID: u32 = 18;
    /// Reads addresses, paths or GIDs: [`rdma_ucm_query`].
    pub const RDMA_USER_CM_CMD_QUERY: u32 = 19;
    /// Binds to an address: [`rdma_ucm_bind`].
    pub const RDMA_USER_CM_CMD_BIND: u32 = 20;
    /// Resolves an address: [`rdma_ucm_resolve_addr`].
    pub const RDMA_USER_CM_CMD_RESOLVE_ADDR: u32 = 21;
    /// Joins a group: [`rdma_ucm_join_mcast`].
    pub const RDMA_USER_CM_CMD_JOIN_MCAST: u32 = 22;
    /// Resolves a service record: [`rdma_ucm_resolve_ib_service`].
    pub const RDMA_USER_CM_CMD_RESOLVE_IB_SERVICE: u32 = 23;
    /// Puts an event into the queue: [`rdma_ucm_write_cm_event`].
    pub const RDMA_USER_CM_CMD_WRITE_CM_EVENT: u32 = 24;
    /// Port space of IP over InfiniBand; datagrams.
    pub const RDMA_PS_IPOIB: u16 = 0x0002;
    /// Port space of any InfiniBand service.
    pub const RDMA_PS_IB: u16 = 0x013F;
    /// Port space of reliable connections.
    pub const RDMA_PS_TCP: u16 = 0x0106;
    /// Port space of datagrams.
    pub const RDMA_PS_UDP: u16 = 0x0111;
    /// Addresses: [`rdma_ucm_query_addr_resp`].
    pub const RDMA_USER_CM_QUERY_ADDR: u32 = 0;
    /// Paths: [`rdma_ucm_query_path_resp`].
    pub const RDMA_USER_CM_QUERY_PATH: u32 = 1;
    /// GIDs: [`rdma_ucm_query_addr_resp`] with InfiniBand addresses.
    pub const RDMA_USER_CM_QUERY_GID: u32 = 2;
    /// Service records: [`rdma_ucm_query_ib_service_resp`].
    pub const RDMA_USER_CM_QUERY_IB_SERVICE: u32 = 3;
    /// Receives and sends.
    pub const RDMA_MC_JOIN_FLAG_FULLMEMBER: u16 = 0;
    /// Sends only.
    pub const RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER: u16 = 1;
    /// Number of flags.
    pub const RDMA_MC_JOIN_FLAG_RESERVED: u16 = 2;
    /// Level: options of an identifier.
    pub const RDMA_OPTION_ID: u32 = 0;
    /// Level: options of InfiniBand.
    pub const RDMA_OPTION_IB: u32 = 1;
    /// Type of service, `u8`.
    pub const RDMA_OPTION_ID_TOS: u32 = 0;
    /// Whether the port may be bound again, `int`.
    pub const RDMA_OPTION_ID_REUSEADDR: u32 = 1;
    /// Whether an IPv6 listener refuses IPv4, `int`.
    pub const RDMA_OPTION_ID_AFONLY: u32 = 2;
    /// Timeout of the QP's acknowledgements, `u8`.
    pub const RDMA_OPTION_ID_ACK_TIMEOUT: u32 = 3;
    /// Paths: [`ib_path_rec_data`].
    pub const RDMA_OPTION_IB_PATH: u32 = 1;
    /// The service is named by its id.
    pub const RDMA_USER_CM_IB_SERVICE_FLAG_ID: u32 = 1 << 0;
    /// The service is named by its name.
    pub const RDMA_USER_CM_IB_SERVICE_FLAG_NAME: u32 = 1 << 1;
    /// Room for a service's name.
    pub const RDMA_USER_CM_IB_SERVICE_NAME_SIZE: usize = 64;
    /// For management packets.
    pub const IB_PATH_GMP: u32 = 1;
    /// Primary path.
    pub const IB_PATH_PRIMARY: u32 = 1 << 1;
    /// Alternate path.
    pub const IB_PATH_ALTERNATE: u32 = 1 << 2;
    /// Outbound.
    pub const IB_PATH_OUTBOUND: u32 = 1 << 3;
    /// Inbound.
    pub const IB_PATH_INBOUND: u32 = 1 << 4;
    /// Inbound, as the reverse of the outbound path.
    pub const IB_PATH_INBOUND_REVERSE: u32 = 1 << 5;
    /// Both directions.
    pub const IB_PATH_BIDIRECTIONAL: u32 = IB_PATH_OUTBOUND | IB_PATH_INBOUND_REVERSE;
    /// The address was resolved.
    pub const RDMA_CM_EVENT_ADDR_RESOLVED: u32 = 0;
    /// The address could not be resolved.
    pub const RDMA_CM_EVENT_ADDR_ERROR: u32 = 1;
    /// The route was resolved.
    pub const RDMA_CM_EVENT_ROUTE_RESOLVED: u32 = 2;
    /// The route could not be resolved.
    pub const RDMA_CM_EVENT_ROUTE_ERROR: u32 = 3;
    /// A peer wants to connect.
    pub const RDMA_CM_EVENT_CONNECT_REQUEST: u32 = 4;
    /// The peer accepted; the QP is not connected yet.
    pub const RDMA_CM_EVENT_CONNECT_RESPONSE: u32 = 5;
    /// Connecting failed.
    pub const RDMA_CM_EVENT_CONNECT_ERROR: u32 = 6;
    /// The peer did not answer.
    pub const RDMA_CM_EVENT_UNREACHABLE: u32 = 7;
    /// The peer rejected.
    pub const RDMA_CM_EVENT_REJECTED: u32 = 8;
    /// The connection is established.
    pub const RDMA_CM_EVENT_ESTABLISHED: u32 = 9;
    /// The connection has ended.
    pub const RDMA_CM_EVENT_DISCONNECTED: u32 = 10;
    /// The device goes away.
    pub const RDMA_CM_EVENT_DEVICE_REMOVAL: u32 = 11;
    /// The group was joined.
    pub const RDMA_CM_EVENT_MULTICAST_JOIN: u32 = 12;
    /// The group could not be joined, or was lost.
    pub const RDMA_CM_EVENT_MULTICAST_ERROR: u32 = 13;
    /// The network interface changed.
    pub const RDMA_CM_EVENT_ADDR_CHANGE: u32 = 14;
    /// The QP number may be used again.
    pub const RDMA_CM_EVENT_TIMEWAIT_EXIT: u32 = 15;
    /// The queue key of datagrams by default.
    pub const RDMA_UDP_QKEY: u32 = 0x0123_4567;
}

abi_structs! {
    /// The storage of a socket address of any family.
    #[c = "struct __kernel_sockaddr_storage"]
    pub struct __kernel_sockaddr_storage {
        /// The storage.
        #[c = "."]
        pub words: [u64; 16],
    }

    /// A path of InfiniBand: a record of the subnet administrator as it is sent.
    pub struct ib_path_rec_data {
        /// `IB_PATH_*`.
        pub flags: u32,
        /// Must be 0.
        pub reserved: u32,
        /// The record.
        pub path_rec: [u32; 16],
    }

    /// A path with its fields unpacked.
    pub struct ib_user_path_rec {
        /// Destination GID.
        pub dgid: [u8; 16],
        /// Source GID.
        pub sgid: [u8; 16],
        /// Destination LID.
        pub dlid: Be16,
        /// Source LID.
        pub slid: Be16,
        /// Whether it is for raw packets.
        pub raw_traffic: u32,
        /// Flow label.
        pub flow_label: Be32,
        /// Whether it is the same back.
        pub reversible: u32,
        /// `IB_MTU_*`.
        pub mtu: u32,
        /// Partition key.
        pub pkey: Be16,
        /// Hop limit.
        pub hop_limit: u8,
        /// Traffic class.
        pub traffic_class: u8,
        /// Number of paths.
        pub numb_path: u8,
        /// Service level.
        pub sl: u8,
        /// How the MTU is meant.
        pub mtu_selector: u8,
        /// How the rate is meant.
        pub rate_selector: u8,
        /// `IB_RATE_*`.
        pub rate: u8,
        /// How the lifetime is meant.
        pub packet_life_time_selector: u8,
        /// Lifetime of packets, 4.096 us * 2^n.
        pub packet_life_time: u8,
        /// Preference.
        pub preference: u8,
    }

    /// A service record of the subnet administrator.
    pub struct ib_user_service_rec {
        /// Service id.
        pub id: Be64,
        /// GID of the service.
        pub gid: [u8; 16],
        /// Partition key.
        pub pkey: Be16,
        /// Written as 0.
        pub reserved: [u8; 2],
        /// Seconds left.
        pub lease: Be32,
        /// Service key.
        pub key: [u8; 16],
        /// Name.
        pub name: Bytes<64>,
        /// Data in bytes.
        pub data_8: [u8; 16],
        /// Data in 16-bit words.
        pub data_16: [Be16; 8],
        /// Data in 32-bit words.
        pub data_32: [Be32; 4],
        /// Data in 64-bit words.
        pub data_64: [Be64; 2],
    }

    /// Head of every command.
    pub struct rdma_ucm_cmd_hdr {
        /// `RDMA_USER_CM_CMD_*`.
        pub cmd: u32,
        /// Bytes of the command's struct.
        #[c = "in"]
        pub input: u16,
        /// Bytes of room for the answer.
        pub out: u16,
    }

    /// Creates an identifier.
    pub struct rdma_ucm_create_id {
        /// Value that events carry; the caller chooses it.
        pub uid: u64,
        /// Address of the answer.
        pub response: u64,
        /// `RDMA_PS_*`.
        pub ps: u16,
        /// `IB_UVERBS_QPT_*`; of `RDMA_PS_IB` only.
        pub qp_type: u8,
        /// Must be 0.
        pub reserved: [u8; 5],
    }

    /// Answer to the creation of an identifier or of a membership.
    pub struct rdma_ucm_create_id_resp {
        /// Its number in this file.
        pub id: u32,
    }

    /// Destroys an identifier, or leaves a group.
    pub struct rdma_ucm_destroy_id {
        /// Address of the answer.
        pub response: u64,
        /// The identifier or the membership.
        pub id: u32,
        /// Must be 0.
        pub reserved: u32,
    }

    /// Answer to the destruction of an identifier.
    pub struct rdma_ucm_destroy_id_resp {
        /// How many events of it were read.
        pub events_reported: u32,
    }

    /// Binds to an IPv6 address.
    pub struct rdma_ucm_bind_ip {
        /// Ignored.
        pub response: u64,
        /// The address.
        pub addr: sockaddr_in6,
        /// The identifier.
        pub id: u32,
    }

    /// Binds to an address.
    pub struct rdma_ucm_bind {
        /// The identifier.
        pub id: u32,
        /// Bytes of the address.
        pub addr_size: u16,
        /// Must be 0.
        pub reserved: u16,
        /// The address.
        pub addr: __kernel_sockaddr_storage,
    }

    /// Resolves an IPv6 address.
    pub struct rdma_ucm_resolve_ip {
        /// Source; may be unspecified.
        pub src_addr: sockaddr_in6,
        /// Destination.
        pub dst_addr: sockaddr_in6,
        /// The identifier.
        pub id: u32,
        /// Time limit.
        pub timeout_ms: u32,
    }

    /// Resolves an address.
    pub struct rdma_ucm_resolve_addr {
        /// The identifier.
        pub id: u32,
        /// Time limit.
        pub timeout_ms: u32,
        /// Bytes of the source; 0 if there is none.
        pub src_size: u16,
        /// Bytes of the destination.
        pub dst_size: u16,
        /// Must be 0.
        pub reserved: u32,
        /// Source.
        pub src_addr: __kernel_sockaddr_storage,
        /// Destination.
        pub dst_addr: __kernel_sockaddr_storage,
    }

    /// Resolves the route.
    pub struct rdma_ucm_resolve_route {
        /// The identifier.
        pub id: u32,
        /// Time limit.
        pub timeout_ms: u32,
    }

    /// Queries an identifier.
    pub struct rdma_ucm_query {
        /// Address of the answer.
        pub response: u64,
        /// The identifier.
        pub id: u32,
        /// `RDMA_USER_CM_QUERY_*`.
        pub option: u32,
    }

    /// Addresses and routes of an identifier.
    pub struct rdma_ucm_query_route_resp {
        /// The device's GUID, as its bytes are sent; 0 without a device.
        pub node_guid: u64,
        /// The paths.
        pub ib_route: [ib_user_path_rec; 2],
        /// Source, of IPv4 or IPv6.
        pub src_addr: sockaddr_in6,
        /// Destination, of IPv4 or IPv6.
        pub dst_addr: sockaddr_in6,
        /// How many paths are valid.
        pub num_paths: u32,
        /// The device's port, from 1.
        pub port_num: u8,
        /// Written as 0.
        pub reserved: [u8; 3],
        /// The device's index.
        pub ibdev_index: u32,
        /// Written as 0.
        pub reserved1: u32,
    }

    /// Addresses of an identifier.
    pub struct rdma_ucm_query_addr_resp {
        /// The device's GUID, as its bytes are sent; 0 without a device.
        pub node_guid: u64,
        /// The device's port, from 1.
        pub port_num: u8,
        /// Written as 0.
        pub reserved: u8,
        /// Partition key.
        pub pkey: u16,
        /// Bytes of the source.
        pub src_size: u16,
        /// Bytes of the destination.
        pub dst_size: u16,
        /// Source.
        pub src_addr: __kernel_sockaddr_storage,
        /// Destination.
        pub dst_addr: __kernel_sockaddr_storage,
        /// The device's index.
        pub ibdev_index: u32,
        /// Written as 0.
        pub reserved1: u32,
    }

    /// Paths of an identifier.
    pub struct rdma_ucm_query_path_resp {
        /// How many paths follow.
        pub num_paths: u32,
        /// Written as 0.
        pub reserved: u32,
        /// The paths.
        pub path_data: [ib_path_rec_data; 0],
    }

    /// Service records of an identifier.
    pub struct rdma_ucm_query_ib_service_resp {
        /// How many records follow.
        pub num_service_recs: u32,
        /// Written as 0.
        pub reserved: u32,
        /// The records.
        pub recs: [ib_user_service_rec; 0],
    }

    /// Parameters of a connection.
    pub struct rdma_ucm_conn_param {
        /// QP number.
        pub qp_num: u32,
        /// Queue key of datagrams.
        pub qkey: u32,
        /// Private data.
        pub private_data: Bytes<RDMA_MAX_PRIVATE_DATA>,
        /// Bytes of private data.
        pub private_data_len: u8,
        /// Non-zero: the QP has an SRQ.
        pub srq: u8,
        /// Reads and atomics that this side serves at once.
        pub responder_resources: u8,
        /// Reads and atomics that this side has outstanding.
        pub initiator_depth: u8,
        /// Non-zero: flow control of the hardware.
        pub flow_control: u8,
        /// Retries after a timeout, 3 bits.
        pub retry_count: u8,
        /// Retries after "receiver not ready", 3 bits.
        pub rnr_retry_count: u8,
        /// Non-zero: the parameters are meant.
        pub valid: u8,
    }

    /// Parameters of datagrams.
    pub struct rdma_ucm_ud_param {
        /// QP number of the peer.
        pub qp_num: u32,
        /// Queue key.
        pub qkey: u32,
        /// The way to the peer.
        pub ah_attr: ib_uverbs_ah_attr,
        /// Private data.
        pub private_data: Bytes<RDMA_MAX_PRIVATE_DATA>,
        /// Bytes of private data.
        pub private_data_len: u8,
        /// Written as 0.
        pub reserved: [u8; 7],
    }

    /// Options of enhanced connection establishment.
    pub struct rdma_ucm_ece {
        /// Whose options these are.
        pub vendor_id: u32,
        /// The options.
        pub attr_mod: u32,
    }

    /// Sends a connection request.
    pub struct rdma_ucm_connect {
        /// The parameters; `valid` must be set.
        pub conn_param: rdma_ucm_conn_param,
        /// The identifier.
        pub id: u32,
        /// Must be 0.
        pub reserved: u32,
        /// Options of this side.
        pub ece: rdma_ucm_ece,
    }

    /// Listens.
    pub struct rdma_ucm_listen {
        /// The identifier.
        pub id: u32,
        /// Requests that may wait; 0 is the most possible.
        pub backlog: u32,
    }

    /// Accepts a request, or completes a connection.
    pub struct rdma_ucm_accept {
        /// Value that events carry from now on.
        pub uid: u64,
        /// The parameters; without `valid` it completes a connection.
        pub conn_param: rdma_ucm_conn_param,
        /// The identifier.
        pub id: u32,
        /// Must be 0.
        pub reserved: u32,
        /// Options of this side.
        pub ece: rdma_ucm_ece,
    }

    /// Rejects a request.
    pub struct rdma_ucm_reject {
        /// The identifier.
        pub id: u32,
        /// Bytes of private data.
        pub private_data_len: u8,
        /// Reason; 0 is the consumer's.
        pub reason: u8,
        /// Must be 0.
        pub reserved: [u8; 2],
        /// Private data.
        pub private_data: Bytes<RDMA_MAX_PRIVATE_DATA>,
    }

    /// Disconnects.
    pub struct rdma_ucm_disconnect {
        /// The identifier.
        pub id: u32,
    }

    /// Reads the QP attributes for a state.
    pub struct rdma_ucm_init_qp_attr {
        /// Address of the answer, [`ib_uverbs_qp_attr`](crate::cmd::ib_uverbs_qp_attr).
        pub response: u64,
        /// The identifier.
        pub id: u32,
        /// `IB_QPS_*`.
        pub qp_state: u32,
    }

    /// Reports an event of the QP.
    pub struct rdma_ucm_notify {
        /// The identifier.
        pub id: u32,
        /// `IB_EVENT_*`.
        pub event: u32,
    }

    /// Joins the group of an IPv6 address.
    pub struct rdma_ucm_join_ip_mcast {
        /// Address of the answer, [`rdma_ucm_create_id_resp`].
        pub response: u64,
        /// Value that events carry.
        pub uid: u64,
        /// The group.
        pub addr: sockaddr_in6,
        /// The identifier.
        pub id: u32,
    }

    /// Joins a group.
    pub struct rdma_ucm_join_mcast {
        /// Address of the answer, [`rdma_ucm_create_id_resp`].
        pub response: u64,
        /// Value that events carry.
        pub uid: u64,
        /// The identifier.
        pub id: u32,
        /// Bytes of the address.
        pub addr_size: u16,
        /// `RDMA_MC_JOIN_FLAG_*`.
        pub join_flags: u16,
        /// The group.
        pub addr: __kernel_sockaddr_storage,
    }

    /// Takes the next event.
    pub struct rdma_ucm_get_event {
        /// Address of the answer, [`rdma_ucm_event_resp`].
        pub response: u64,
    }

    /// Union of an event's parameters.
    #[c = "__typeof__(((struct rdma_ucm_event_resp *)0)->param)"]
    pub struct rdma_ucm_event_param {
        /// The storage; use the arms.
        #[c = "."]
        pub words: [[u32; 4]; 19],
    }

    /// An event.
    pub struct rdma_ucm_event_resp {
        /// The identifier's or membership's value.
        pub uid: u64,
        /// Its number; of a connection request that of the new identifier.
        pub id: u32,
        /// `RDMA_CM_EVENT_*`.
        pub event: u32,
        /// 0, a negative errno, or a reason.
        pub status: u32,
        /// The parameters.
        pub param: rdma_ucm_event_param,
        /// Written as 0.
        pub reserved: u32,
        /// Options of the peer.
        pub ece: rdma_ucm_ece,
    }

    /// Sets an option.
    pub struct rdma_ucm_set_option {
        /// Address of the value.
        pub optval: u64,
        /// The identifier.
        pub id: u32,
        /// `RDMA_OPTION_ID` or `RDMA_OPTION_IB`.
        pub level: u32,
        /// The option.
        pub optname: u32,
        /// Bytes of the value.
        pub optlen: u32,
    }

    /// Moves an identifier to the file that the command is written to.
    pub struct rdma_ucm_migrate_id {
        /// Address of the answer.
        pub response: u64,
        /// The identifier's number in its present file.
        pub id: u32,
        /// The present file.
        pub fd: u32,
    }

    /// Answer to the move of an identifier.
    pub struct rdma_ucm_migrate_resp {
        /// How many events of it were read from the present file.
        pub events_reported: u32,
    }

    /// A service of InfiniBand.
    pub struct rdma_ucm_ib_service {
        /// Its id.
        pub service_id: u64,
        /// Its name.
        pub service_name: Bytes<RDMA_USER_CM_IB_SERVICE_NAME_SIZE>,
        /// `RDMA_USER_CM_IB_SERVICE_FLAG_*`.
        pub flags: u32,
        /// Must be 0.
        pub reserved: u32,
    }

    /// Resolves a service record.
    pub struct rdma_ucm_resolve_ib_service {
        /// The identifier.
        pub id: u32,
        /// Must be 0.
        pub reserved: u32,
        /// The service.
        pub ibs: rdma_ucm_ib_service,
    }

    /// Union of the parameters of an event that is written.
    #[c = "__typeof__(((struct rdma_ucm_write_cm_event *)0)->param)"]
    pub struct rdma_ucm_write_cm_event_param {
        /// The storage; use the arms.
        #[c = "."]
        pub words: [[u64; 2]; 19],
    }

    /// Puts an event into the queue.
    pub struct rdma_ucm_write_cm_event {
        /// The identifier.
        pub id: u32,
        /// Must be 0.
        pub reserved: u32,
        /// `RDMA_CM_EVENT_*`.
        pub event: u32,
        /// Status of the event.
        pub status: u32,
        /// The parameters.
        pub param: rdma_ucm_write_cm_event_param,
    }
}

abi_union!(rdma_ucm_event_param {
    /// Of identifiers of connections.
    conn, set_conn: rdma_ucm_conn_param;
    /// Of identifiers of datagrams.
    ud, set_ud: rdma_ucm_ud_param;
    /// Of events that a program wrote.
    arg32, set_arg32: [u32; 2];
});

abi_union!(rdma_ucm_write_cm_event_param {
    /// Of identifiers of connections.
    conn, set_conn: rdma_ucm_conn_param;
    /// Of identifiers of datagrams.
    ud, set_ud: rdma_ucm_ud_param;
    /// Of events that have no meaning to the kernel.
    arg, set_arg: u64;
});
