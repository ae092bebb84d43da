BEGIN TRANSACTION;
CREATE TABLE claims (
	step INTEGER NOT NULL, 
	groups VARCHAR NOT NULL, 
	snapshot VARCHAR NOT NULL, 
	generation INTEGER NOT NULL, 
	created_at FLOAT NOT NULL, 
	PRIMARY KEY (step)
);
INSERT INTO "claims" VALUES(1,'["4f682888ac8ce205f5ce75a9", "c019620ef316a9d75c182273"]','{"segment": 1, "overlay": 2, "pipeline": "pipe", "staleness": 0}',1,1.79612780428998923304e+09);
INSERT INTO "claims" VALUES(2,'["7d3220d578089b78b1c99d53", "e6111075b3808f39c48e91aa"]','{"segment": 3, "overlay": 4, "pipeline": "pipe", "staleness": 0}',1,1.79612780432000303265e+09);
CREATE TABLE cursors (
	name VARCHAR NOT NULL, 
	position INTEGER NOT NULL, 
	fingerprint VARCHAR, 
	PRIMARY KEY (name)
);
INSERT INTO "cursors" VALUES('tasks',11,'fingerprint');
CREATE TABLE evaluations (
	name VARCHAR NOT NULL, 
	version INTEGER NOT NULL, 
	metrics VARCHAR NOT NULL, 
	uri VARCHAR NOT NULL, 
	created_at FLOAT NOT NULL, 
	PRIMARY KEY (name, version)
);
INSERT INTO "evaluations" VALUES('held_out',1,'{"evaluation/exact": 1.0}','evaluations/held_out-000001.parquet',1796127804.354);
CREATE TABLE groups (
	group_id VARCHAR NOT NULL, 
	lease_id VARCHAR NOT NULL, 
	task_id VARCHAR NOT NULL, 
	segment VARCHAR NOT NULL, 
	step INTEGER NOT NULL, 
	slot INTEGER NOT NULL, 
	size INTEGER NOT NULL, 
	status VARCHAR NOT NULL, 
	reason VARCHAR NOT NULL, 
	lowest_version INTEGER NOT NULL, 
	trained_step INTEGER, 
	PRIMARY KEY (group_id), 
	UNIQUE (lease_id), 
	FOREIGN KEY(lease_id) REFERENCES leases (lease_id), 
	FOREIGN KEY(segment) REFERENCES segments ("key")
);
INSERT INTO "groups" VALUES('4f682888ac8ce205f5ce75a9','d7884f052ef3e1a057d3b36e','task-0','step-000001-0000-0',1,0,2,'trained','',0,1);
INSERT INTO "groups" VALUES('c019620ef316a9d75c182273','23df2429cd2b78946f35e1fc','task-1','step-000001-0000-0',1,1,2,'trained','',0,1);
INSERT INTO "groups" VALUES('a958e6b837ef156d57f17396','186a24207295bd0e59bca9d3','task-2','step-000001-0000-0',1,2,2,'dropped','drop_no_signal: all equal',0,NULL);
INSERT INTO "groups" VALUES('7d3220d578089b78b1c99d53','30a9c18c76f51536667f3d91','task-3','step-000002-0000-0',2,0,2,'ready','',0,NULL);
INSERT INTO "groups" VALUES('e6111075b3808f39c48e91aa','04d2a7fe1314f3bf0dba674f','task-4','step-000002-0000-0',2,1,2,'ready','',0,NULL);
INSERT INTO "groups" VALUES('9b6200026a23214341fdfb62','831994a868c6a5e0c256dca1','task-5','step-000002-0000-0',2,2,2,'dropped','drop_no_signal: all equal',0,NULL);
INSERT INTO "groups" VALUES('90d30ac5e9cdd8ba5fc9df90','753256a8056ae189363060d3','task-6','step-000003-0000-0',3,0,2,'ready','',0,NULL);
INSERT INTO "groups" VALUES('4fa9918c60cdad7548a2cc55','91d20068e2d08455d2357f1e','task-7','step-000003-0000-0',3,1,2,'ready','',0,NULL);
INSERT INTO "groups" VALUES('035e793e03de66148f8fd702','260f1edd619f2e15ff78c3ce','task-8','step-000003-0000-0',3,2,2,'dropped','drop_no_signal: all equal',0,NULL);
CREATE TABLE intents (
	"key" VARCHAR NOT NULL, 
	uri VARCHAR NOT NULL, 
	created_at FLOAT NOT NULL, 
	PRIMARY KEY ("key")
);
CREATE TABLE leases (
	lease_id VARCHAR NOT NULL, 
	step INTEGER NOT NULL, 
	slot INTEGER NOT NULL, 
	position INTEGER NOT NULL, 
	task_id VARCHAR NOT NULL, 
	epoch INTEGER NOT NULL, 
	explorer VARCHAR NOT NULL, 
	issued_at FLOAT NOT NULL, 
	closed_at FLOAT, 
	fate VARCHAR, 
	reason VARCHAR NOT NULL, 
	PRIMARY KEY (lease_id), 
	UNIQUE (step, slot, epoch)
);
INSERT INTO "leases" VALUES('d7884f052ef3e1a057d3b36e',1,0,0,'task-0',0,'explorer',1.79612780287301826475e+09,1.79612780426399850849e+09,'stored','');
INSERT INTO "leases" VALUES('23df2429cd2b78946f35e1fc',1,1,1,'task-1',0,'explorer',1.79612780287301826475e+09,1.79612780426399850849e+09,'stored','');
INSERT INTO "leases" VALUES('186a24207295bd0e59bca9d3',1,2,2,'task-2',0,'explorer',1.79612780287301826475e+09,1.79612780426399850849e+09,'stored','');
INSERT INTO "leases" VALUES('30a9c18c76f51536667f3d91',2,0,3,'task-3',0,'explorer',1.79612780430101299285e+09,1.7961278043090195656e+09,'stored','');
INSERT INTO "leases" VALUES('04d2a7fe1314f3bf0dba674f',2,1,4,'task-4',0,'explorer',1.79612780430101299285e+09,1.7961278043090195656e+09,'stored','');
INSERT INTO "leases" VALUES('831994a868c6a5e0c256dca1',2,2,5,'task-5',0,'explorer',1.79612780430101299285e+09,1.7961278043090195656e+09,'stored','');
INSERT INTO "leases" VALUES('753256a8056ae189363060d3',3,0,6,'task-6',0,'explorer',1.79612780432201480868e+09,1.79612780433199262621e+09,'stored','');
INSERT INTO "leases" VALUES('91d20068e2d08455d2357f1e',3,1,7,'task-7',0,'explorer',1.79612780432201480868e+09,1.79612780433199262621e+09,'stored','');
INSERT INTO "leases" VALUES('260f1edd619f2e15ff78c3ce',3,2,8,'task-8',0,'explorer',1.79612780432201480868e+09,1.79612780433199262621e+09,'stored','');
INSERT INTO "leases" VALUES('7aaed84aaf08f2df6caebbe5',3,3,9,'task-9',0,'explorer',1.79612780434398198125e+09,NULL,NULL,'');
INSERT INTO "leases" VALUES('531bad2b60f86eb70ad87062',3,4,10,'task-10',0,'explorer',1.79612780434398198125e+09,NULL,NULL,'');
CREATE TABLE meta (
	"key" VARCHAR NOT NULL, 
	value INTEGER NOT NULL, 
	PRIMARY KEY ("key")
);
INSERT INTO "meta" VALUES('schema_version',1);
INSERT INTO "meta" VALUES('sequence',6);
CREATE TABLE overlays (
	pipeline VARCHAR NOT NULL, 
	segment VARCHAR NOT NULL, 
	sequence INTEGER NOT NULL, 
	uri VARCHAR NOT NULL, 
	rows INTEGER NOT NULL, 
	sha256 VARCHAR NOT NULL, 
	account VARCHAR NOT NULL, 
	created_at FLOAT NOT NULL, 
	PRIMARY KEY (pipeline, segment), 
	FOREIGN KEY(segment) REFERENCES segments ("key"), 
	UNIQUE (sequence)
);
INSERT INTO "overlays" VALUES('pipe','step-000001-0000-0',2,'overlays/pipe-step-000001-0000-0-e5ac9495.parquet',6,'2e76de9a5c29bdca991679d8c338b10203f83eb3b4688fed30c34759003a6ee3','[]',1.79612780428500032423e+09);
INSERT INTO "overlays" VALUES('pipe','step-000002-0000-0',4,'overlays/pipe-step-000002-0000-0-2ea9d201.parquet',6,'36b3a3c809a4386024638f42f82ffd5c1e647436c066060b00df1c15c97a1d5e','[]',1.79612780431698560714e+09);
INSERT INTO "overlays" VALUES('pipe','step-000003-0000-0',6,'overlays/pipe-step-000003-0000-0-af7e3718.parquet',6,'4c419a5c3d9cbeafcf9800bb9865ed12a8e6a66b49c7e2adedf499dd98615ded','[]',1.79612780433798742297e+09);
CREATE TABLE readers (
	reader VARCHAR NOT NULL, 
	version INTEGER NOT NULL, 
	seen_at FLOAT NOT NULL, 
	PRIMARY KEY (reader)
);
CREATE TABLE segments (
	"key" VARCHAR NOT NULL, 
	sequence INTEGER NOT NULL, 
	uri VARCHAR NOT NULL, 
	rows INTEGER NOT NULL, 
	bytes INTEGER NOT NULL, 
	sha256 VARCHAR NOT NULL, 
	schema_version INTEGER NOT NULL, 
	explorer VARCHAR NOT NULL, 
	step INTEGER NOT NULL, 
	created_at FLOAT NOT NULL, 
	PRIMARY KEY ("key"), 
	UNIQUE (sequence)
);
INSERT INTO "segments" VALUES('step-000001-0000-0',1,'segments/step-000001-0000-0-690ef515.parquet',6,8854,'c9f32f234af1c940eda894727d97747951bec92b588c79e5f0e6509c52f4e5b4',1,'explorer',1,1.79612780426798152922e+09);
INSERT INTO "segments" VALUES('step-000002-0000-0',3,'segments/step-000002-0000-0-cccad0a3.parquet',6,8855,'0fc0d409af600dd4f6b359a3b16955080af60e4425b6019471920dff9092317e',1,'explorer',2,1.79612780430998516083e+09);
INSERT INTO "segments" VALUES('step-000003-0000-0',5,'segments/step-000003-0000-0-c85b1b09.parquet',6,8850,'9fd0199af6dc77201451753d26e926caa0f22060fea16806e5f781ea0ae3eb89',1,'explorer',3,1.79612780433299827577e+09);
CREATE TABLE steps (
	step INTEGER NOT NULL, 
	status VARCHAR NOT NULL, 
	version INTEGER NOT NULL, 
	metrics VARCHAR NOT NULL, 
	checkpoint VARCHAR, 
	generation INTEGER NOT NULL, 
	started_at FLOAT NOT NULL, 
	committed_at FLOAT NOT NULL, 
	PRIMARY KEY (step)
);
INSERT INTO "steps" VALUES(1,'trained',1,'{"train/loss": 0.5}',NULL,1,1.0,1.79612780429598379132e+09);
CREATE TABLE trainers (
	generation INTEGER NOT NULL, 
	process VARCHAR NOT NULL, 
	started_at FLOAT NOT NULL, 
	PRIMARY KEY (generation)
);
INSERT INTO "trainers" VALUES(1,'process 1 on somewhere',1.79612780286698341374e+09);
CREATE TABLE weights (
	version INTEGER NOT NULL, 
	step INTEGER NOT NULL, 
	uri VARCHAR, 
	sha256 VARCHAR, 
	pinned VARCHAR, 
	generation INTEGER NOT NULL, 
	created_at FLOAT NOT NULL, 
	PRIMARY KEY (version)
);
INSERT INTO "weights" VALUES(1,1,NULL,NULL,NULL,1,1.79612780429300665854e+09);
CREATE INDEX groups_by_status ON groups (status, step, slot);
CREATE VIEW fates as
select l.lease_id, l.step, l.slot, l.task_id, l.epoch, l.explorer, g.group_id, g.trained_step,
       case when l.fate is null then 'in_flight' when l.fate = 'stored' then g.status else l.fate end as fate,
       case when l.fate = 'stored' then g.reason else l.reason end as reason
from leases l left join groups g on g.lease_id = l.lease_id;
COMMIT;
